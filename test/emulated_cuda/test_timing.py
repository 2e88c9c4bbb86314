"""Timing mode of the executor: ``timing_cases.py``, in a process with that mode."""

from __future__ import annotations

import json
import pathlib

import pytest

import timing_cases
from emulated_runtime import run_alone


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    script = pathlib.Path(timing_cases.__file__)
    done = run_alone([str(script)], gpu="h100-80gb", timing=1)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", timing_cases.CASES)
def test_timing(outcomes: dict[str, str], name: str):
    if outcomes[name]:
        pytest.fail(outcomes[name], pytrace=False)
