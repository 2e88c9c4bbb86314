"""The splice build: a stock wheel with the patched libraries rebuilt.

Started by build_wheel.sh, which sees to the packages that this needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from remat_build.components import Interpreter
from remat_build.console import one_line_errors
from remat_build.environment import install_debian_packages
from remat_build.options import add_wheel_options
from remat_build.patchset import PatchSet
from remat_build.project import Project, locked
from remat_build.series import libraries_of
from remat_build.splice import Splice


def main() -> None:
    project = Project.here()
    parser = argparse.ArgumentParser(
        prog="build_wheel.sh",
        description="Build the wheel from a stock wheel and the patched sources.",
    )
    add_wheel_options(parser, project)
    parser.add_argument(
        "--source", type=Path, metavar="TREE", help="a PyTorch tree of your own"
    )
    parser.add_argument(
        "--git-tag", action="store_true", help="clone the upstream tag with git"
    )
    parser.add_argument(
        "--rebuild",
        metavar="LIBRARIES",
        help="c10 or c10,c10_cuda; default: those whose files a patch edits",
    )
    options = parser.parse_args()

    python = Interpreter.ask(options.python, project.upstream["matrix"]["python"])
    install_debian_packages(project.upstream["matrix"]["debian_packages"])
    rebuild = libraries_of(PatchSet(project.patches).touched)
    if options.rebuild:
        rebuild = tuple(options.rebuild.split(","))
    tree = project.default_tree
    prepare = [sys.executable, project.root / "build_scripts/prepare_tree.py"]
    if options.source:
        prepare += ["--source", options.source]
        tree = project.build / "upstream-source"
    elif options.git_tag:
        prepare += ["--git-tag"]
        tree = project.build / "upstream-git"
    prepare += ["--dest", tree]
    if subprocess.run([str(word) for word in prepare]).returncode != 0:
        raise SystemExit(1)
    with locked(project.build / f".splice-{python.tag}-lock"):
        build = Splice(project, tree, python, options.jobs, rebuild)
        print(build.build(options.out.resolve()))


if __name__ == "__main__":
    with one_line_errors():
        main()
