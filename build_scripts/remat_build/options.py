"""Options that the builds of a wheel share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .project import Project


def add_wheel_options(parser: argparse.ArgumentParser, project: Project) -> None:
    """Add ``--python``, ``--out`` and ``--jobs``."""
    supported = project.upstream["matrix"]["python"]
    parser.add_argument(
        "--python",
        default=os.environ.get("REMAT_PYTHON", sys.executable),
        help=f"the Python that the wheel is for, one of {', '.join(supported)}; "
        "default: %(default)s",
    )
    parser.add_argument(
        "--out", type=Path, default=project.root / "dist", help="default: %(default)s"
    )
    parser.add_argument(
        "--jobs", type=_count, default=os.cpu_count(), help="default: %(default)s"
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:  # to Ninja, 0 is any number
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
