"""Check that the fork is part of upstream's own build.

Configures the full build and compiles in it what the fork adds and edits: libc10
with our sources and the patched files of it, and the objects of libtorch_remat and
its binding (linking these needs all of PyTorch, which takes hours). Then asks CMake
what the wheel would get. Started by check_full_build.sh.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "build_scripts"))

from remat_build.components import Interpreter  # noqa: E402
from remat_build.console import one_line_errors, run, say  # noqa: E402
from remat_build.environment import install_debian_packages  # noqa: E402
from remat_build.full import FullBuild  # noqa: E402
from remat_build.patchset import PatchSet  # noqa: E402
from remat_build.project import Project, files_under  # noqa: E402


def objects_of(folder: Path, *libraries: str) -> list[str]:
    """The object files of some libraries, as Ninja's targets."""
    targets = run(["ninja", "-C", folder, "-t", "targets", "all"]).splitlines()
    names = (line.partition(":")[0] for line in targets)
    marks = [f"/{library}.dir/" for library in libraries]
    return [n for n in names if n.endswith(".o") and any(m in n for m in marks)]


def check_compiled(build: FullBuild, objects: list[str]) -> Iterator[str]:
    """Every source file of ours, and every patched one, was compiled exactly once."""
    patch_set = PatchSet(build.project.patches)
    sources = [Path(name) for name in patch_set.touched if name.endswith(".cpp")]
    for folder in patch_set.overlay.values():
        for file in files_under(build.tree / folder):
            if not file.stem.endswith(("_test", "_main", "_bench")):
                sources.append(file.relative_to(build.tree))
    for source in sources:
        if source.suffix != ".cpp" or (source.parts[:2] == ("c10", "cuda")):
            continue
        tail = "/".join(source.parts[-2:]) + ".o"
        count = sum(name.endswith(tail) for name in objects)
        if count != 1:
            yield f"{source} is compiled {count} times"


def main() -> None:
    project = Project.here()
    python = Interpreter.ask(sys.executable, project.upstream["matrix"]["python"])
    build = FullBuild(project, python, None, None, os.cpu_count() or 1)
    # None of our code uses oneDNN, which takes longer to compile than all of this. A
    # build that has it keeps it.
    os.environ.setdefault("USE_MKLDNN", build.configured.get("USE_MKLDNN", "OFF"))
    install_debian_packages(build.packages())
    with build.lock():
        build.configure()
        objects = objects_of(build.folder, "torch_remat", "torch_remat_python")
        build.compile("c10", *objects)
    objects += objects_of(build.folder, "c10")
    problems = list(check_compiled(build, objects))
    symbols = run(["nm", "--demangle", build.folder / "lib/libc10.so"])
    if "c10::remat::" not in symbols:
        problems.append("libc10.so does not contain c10::remat")
    for problem in problems:
        say(problem)
    if problems:
        raise SystemExit(1)
    print(f"{len(objects)} objects compiled in upstream's build, each once")


if __name__ == "__main__":
    with one_line_errors():
        main()
