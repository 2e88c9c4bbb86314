"""Try the patch series on another upstream tree, which is only read.

Says of each patch whether it applies, and of each hunk that does not which file and
lines it was made for, and its text. The exit status is 1 if any does not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from remat_build.console import fail, one_line_errors, run
from remat_build.patchset import Patch, PatchSet
from remat_build.project import Project

_HUNK = re.compile(r"(?=^@@ )", re.M)


def try_patch(patch: Patch, scratch: Path) -> Iterator[str]:
    """Apply to ``scratch`` what of a patch can be, so that later patches meet what
    they were made for; yield a text for each thing that could not."""
    command = ["git", "apply", "--reject"]
    for file in patch.files:
        if not (scratch / file).is_file():
            yield f"{file} does not exist"
            command.append(f"--exclude={file}")
    subprocess.run(
        command, cwd=scratch, input=patch.diff, text=True, capture_output=True
    )
    for file in patch.files:
        rejected = scratch / f"{file}.rej"
        if rejected.is_file():
            _, *hunks = _HUNK.split(rejected.read_text())
            rejected.unlink()
            for hunk in hunks:
                line = int(re.findall(r"\d+", hunk)[0])
                number = patch.hunk_at(file, line)
                yield f"{file}, line {line}, hunk {number} fails:\n{_indent(hunk)}"


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.rstrip().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="check_upstream.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tree", type=Path, help="a PyTorch source tree")
    tree = parser.parse_args().tree
    if not (tree / "version.txt").is_file():
        fail(f"{tree} is not a PyTorch source tree (no version.txt)")
    project = Project.here()
    patch_set = PatchSet(project.patches)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        run(["git", "init", "--quiet"], cwd=scratch)
        for file in patch_set.touched:
            if (tree / file).is_file():
                (scratch / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(tree / file, scratch / file)
        for name, patch in zip(patch_set.series, patch_set.patches):
            problems = list(try_patch(patch, scratch))
            print(f"patches/{name}: {'does not apply' if problems else 'applies'}")
            for problem in problems:
                print(f"  {problem}")
            failed += bool(problems)
    version = (tree / "version.txt").read_text().strip()
    total = len(patch_set.patches)
    print(f"PyTorch {version}: {total - failed} of {total} patches apply")
    for theirs in patch_set.overlay.values():
        if (tree / theirs).exists():
            failed += 1
            print(f"{theirs} is a folder of its own; an overlay would replace it")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    with one_line_errors():
        main()
