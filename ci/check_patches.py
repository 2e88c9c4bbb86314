#!/usr/bin/env python3
"""Check the patch set; needs no build.

Every rule is one of those in patches/README.md. The pristine files come from the
upstream archive (from the cache, or fetched).
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "build_scripts"))

from remat_build.console import BuildError, one_line_errors, say  # noqa: E402
from remat_build.patchset import FIELDS, Patch, PatchSet  # noqa: E402
from remat_build.project import Project  # noqa: E402
from remat_build.sources import some_from_debian  # noqa: E402
from remat_build.tree import Tree, commit_series, verify_lock  # noqa: E402

MAX_FILES = 5
MAX_LINES = 40
MAX_SERIES_LINES = 400


def check_form(patch: Patch, root: Path) -> Iterator[str]:
    """What can be said of one patch by reading it."""
    for name in FIELDS:
        if not patch.fields.get(name):
            yield f"has no `{name}:` field"
    upstream = patch.fields.get("Upstream", "not-sent")
    if not re.fullmatch(r"not-sent|sent \S+|merged \S+", upstream):
        yield (
            f"`Upstream: {upstream}` is not `not-sent`, `sent <url>` or "
            "`merged <version>`"
        )
    for test in re.split(r"[,\s]+", patch.fields.get("Tested-by", "")):
        if test and not (root / test).exists():
            yield f"`Tested-by: {test}` does not exist"
    if len(patch.files) > MAX_FILES:
        yield f"edits {len(patch.files)} files; at most {MAX_FILES}"
    changed = len(patch.added) + len(patch.removed)
    if changed > MAX_LINES:
        yield f"changes {changed} lines; at most {MAX_LINES}"
    for line in patch.added:
        if "remat" not in line:
            yield f"adds a line without `remat` in it: {line.strip()!r}"
    if re.search(
        r"^(new file|deleted file|rename|copy|old mode|GIT binary)", patch.diff, re.M
    ):
        yield "adds, deletes, renames or copies a file; it may only edit upstream's"


def check_set(patch_set: PatchSet, root: Path) -> Iterator[str]:
    """What can be said by reading the folder."""
    total = 0
    for name, patch in zip(patch_set.series, patch_set.patches):
        total += len(patch.added) + len(patch.removed)
        yield from (f"patches/{name} {problem}" for problem in check_form(patch, root))
    if total > MAX_SERIES_LINES:
        yield f"the series changes {total} lines; at most {MAX_SERIES_LINES}"
    for path in sorted(set(patch_set.lock) - set(patch_set.touched)):
        yield f"patches/touched.lock names {path}, which no patch edits"


def check_against(patch_set: PatchSet, pristine: Path) -> Iterator[str]:
    """Apply to pristine files, and write back: each patch must come out as it is."""
    verify_lock(patch_set, pristine)
    tree = Tree(pristine)
    commit_series(tree, patch_set)
    for name, commit in zip(patch_set.series, tree.commits()):
        if tree.read_patch(commit).format() != (patch_set.folder / name).read_text():
            yield f"patches/{name} is not as refresh_patches.py writes it"


def main() -> None:
    project = Project.here()
    patch_set = PatchSet(project.patches)
    problems = list(check_set(patch_set, project.root))
    with tempfile.TemporaryDirectory() as folder:
        pristine = Path(folder)
        present = some_from_debian(project, patch_set.touched, pristine)
        for theirs in patch_set.overlay.values():
            if theirs in present:
                problems.append(f"overlay {theirs} is a folder that upstream has")
        try:
            problems += check_against(patch_set, pristine)
        except BuildError as error:
            problems.append(str(error))
    for problem in problems:
        say(problem)
    if problems:
        raise SystemExit(1)
    lines = sum(len(p.added) + len(p.removed) for p in patch_set.patches)
    print(
        f"{len(patch_set.patches)} patches, {len(patch_set.touched)} upstream files, "
        f"{lines} changed lines: as they should be"
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
