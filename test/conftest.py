"""Shared pytest settings: where the repository is, what is left out without ours."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    parser.addoption(
        "--opinfo-every",
        type=int,
        default=8,
        help="check every n-th OpInfo entry (1 checks all of them)",
    )


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Leave out test/python where the installed torch is not ours.

    The patch-set tests need no torch; the rest cannot even be imported without.
    """
    inside = collection_path.is_relative_to(REPOSITORY / "test" / "python")
    return True if inside and not _has_remat() else None


def pytest_report_header() -> str:
    """Say which torch is tested."""
    if not _has_remat():
        return "torch.cuda.remat: not installed, test/python is left out"
    import torch

    return f"torch {torch.__version__} from {pathlib.Path(torch.__file__).parent}"


def _has_remat() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    return importlib.util.find_spec("torch.cuda.remat") is not None
