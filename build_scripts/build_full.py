"""The full build: all of PyTorch compiled from the patched sources.

Started by build_full.sh, which sees to the packages that this needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from remat_build.components import Interpreter
from remat_build.console import one_line_errors
from remat_build.environment import install_debian_packages
from remat_build.full import FullBuild
from remat_build.options import add_wheel_options
from remat_build.project import Project


def main() -> None:
    project = Project.here()
    parser = argparse.ArgumentParser(
        prog="build_full.sh",
        description="Build the wheel from source, with upstream's own build.",
        epilog="Variables that upstream's setup.py knows (USE_MKLDNN=1, ...) are "
        "passed on. A build that was interrupted goes on where it stopped.",
    )
    flavour = parser.add_mutually_exclusive_group()
    flavour.add_argument("--cpu", action="store_true", help="without CUDA; the default")
    flavour.add_argument(
        "--cuda", metavar="ARCHS", help='with CUDA, for GPUs such as "8.0;9.0+PTX"'
    )
    parser.add_argument(
        "--source",
        type=Path,
        metavar="TREE",
        help="an upstream checkout with its submodules, instead of Debian's sources",
    )
    add_wheel_options(parser, project)
    parser.add_argument(
        "--targets",
        nargs="+",
        metavar="TARGET",
        help="stop when these are built; no wheel is written",
    )
    options = parser.parse_args()

    python = Interpreter.ask(options.python, project.upstream["matrix"]["python"])
    source = options.source.resolve() if options.source else None
    build = FullBuild(project, python, source, options.cuda, options.jobs)
    install_debian_packages(build.packages())
    with build.lock():
        if options.targets:
            build.configure()
            build.compile(*options.targets)
        else:
            print(build.build(options.out.resolve()))


if __name__ == "__main__":
    with one_line_errors():
        main()
