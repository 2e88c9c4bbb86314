#!/usr/bin/env python3
"""Prepare an upstream tree: fetch, verify, one commit per patch, lay overlays.

Running it again is quick: if neither the patches nor the source changed, only
the overlay files that changed are copied.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from remat_build import sources
from remat_build.console import one_line_errors, say
from remat_build.project import Project, locked
from remat_build.tree import prepare


def main() -> None:
    project = Project.here()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument(
        "--source", type=Path, metavar="TREE", help="a PyTorch tree; it is only read"
    )
    origin.add_argument(
        "--git-tag", action="store_true", help="clone the upstream tag with git"
    )
    parser.add_argument(
        "--dest", type=Path, default=project.default_tree, help="default: %(default)s"
    )
    parser.add_argument(
        "--3way",
        dest="three_way",
        action="store_true",
        help="merge patches into another upstream version, see docs/building.md",
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="replace a tree that holds work not written back to patches/",
    )
    options = parser.parse_args()
    upstream = project.upstream
    if options.source:
        tree = options.source.resolve()
        source = f"tree {tree} {sources.fingerprint(tree)}"
        fetch = partial(sources.from_tree, tree)
    elif options.git_tag:
        source = f"git {upstream['git_url']} {upstream['git_tag']}"
        fetch = partial(sources.from_git_tag, project)
    else:
        source = f"debian {upstream['debian']['sha256']}"
        fetch = partial(sources.from_debian, project)
    destination = options.dest.resolve()
    with locked(destination.parent / f".{destination.name}-lock"):
        prepare(
            project,
            destination,
            source=source,
            fetch=fetch,
            three_way=options.three_way,
            discard=options.discard,
        )
    say(f"{options.dest} is ready")


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        raise SystemExit("prepare_tree.py: needs Python 3.11 or newer to run")
    with one_line_errors():
        main()
