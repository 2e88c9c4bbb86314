#!/usr/bin/env python3
"""Write the commits of a prepared tree back to patches/ and touched.lock.

The inverse of prepare_tree.py: on an untouched tree it changes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from remat_build.console import one_line_errors, say
from remat_build.project import Project
from remat_build.tree import Tree, refresh


def main() -> None:
    project = Project.here()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tree", type=Path, default=project.default_tree, help="default: %(default)s"
    )
    options = parser.parse_args()
    refresh(project, Tree(options.tree.resolve()))
    say("patches/ is up to date with the tree")


if __name__ == "__main__":
    with one_line_errors():
        main()
