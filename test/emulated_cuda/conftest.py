"""The tests here need the emulated device: ``with_env.sh --emulate-cuda pytest``."""

from __future__ import annotations

import os

collect_ignore_glob: list[str] = []
if "EMULATED_CUDA_EXECUTOR" not in os.environ:
    collect_ignore_glob.append("test_*.py")


def pytest_report_header() -> str | None:
    if collect_ignore_glob:
        return "no emulated CUDA device: test/emulated_cuda is left out"
    return None
