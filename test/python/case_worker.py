"""Run one case script plainly, under chaos and within budgets; one JSON line per mode.

Called by ``test_cases.py`` in a process of its own, because a case may fork, start
threads or (where something is wrong) crash. By hand::

    python test/python/case_worker.py CASE.py [MODE ...]
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable

import torch

import runs

# The cases that are about CUDA use it where it is; the others are the CPU's.
DEVICE = os.environ.get("CASE_DEVICE", "cpu")
RATIOS = {"budget-0.6": 0.6, "budget-0.4": 0.4, "budget-0.2": 0.2}
MODES = ("plain", "recorded", "chaos", *RATIOS)

# What an out-of-memory error must say.
OUT_OF_MEMORY = re.compile(
    r"remat: out of memory on (cpu|cuda:\d)\. Tried to .* with .* in use; the budget "
    r"is .*\. In use: .* leaf .*, .* in use by ops, .* pinned by pin\(\), .* escaped "
    r".*, .* held for replay, .* evictable, .* not managed\. .* evicted already\. "
    r".*Nothing was lost: raise the budget"
)


def load(path: pathlib.Path) -> Callable[[], object]:
    """Import a case by path; returns its ``run``."""
    spec = importlib.util.spec_from_file_location("case", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case"] = module
    spec.loader.exec_module(module)
    return module.run


def run_mode(
    function: Callable[[], object], mode: str, plain: runs.Outcome
) -> dict[str, object]:
    """Run one mode; returns what the test asserts on and what a reader wants."""
    gc.collect()
    start = time.perf_counter()
    report: dict[str, object] = {"mode": mode}
    outcome = None
    try:
        if mode == "plain":
            outcome = runs.execute(function, DEVICE)
        else:
            outcome = runs.execute_enabled(
                function,
                DEVICE,
                ratio=RATIOS.get(mode),
                plain=plain,
                chaos=mode == "chaos",
            )
        # TorchScript makes a RuntimeError of it, with the text inside.
        if mode in RATIOS and "out of memory" in str(outcome.error):
            report["out_of_memory"] = outcome.error
            report["differences"] = after_out_of_memory(function, outcome, plain)
        else:
            report["differences"] = plain.differences(outcome)[:20]
    except AssertionError as broken:
        report["differences"] = [f"AssertionError: {broken}"]
    if outcome is not None:
        report["peak"] = outcome.memory.peak
        report["floor"] = outcome.memory.floor
        if outcome.stats is not None:
            report["evictions"] = outcome.stats.evictions
            report["replays"] = outcome.stats.replays
    report["seconds"] = round(time.perf_counter() - start, 2)
    return report


def after_out_of_memory(
    function: Callable[[], object], outcome: runs.Outcome, plain: runs.Outcome
) -> list[str]:
    """List what is wrong with the error, and with a run without a budget after it."""
    assert outcome.error is not None
    lines = []
    if not OUT_OF_MEMORY.search(outcome.error):
        lines.append(f"incomplete: {outcome.error}")
    again = plain.differences(runs.execute(function, DEVICE))
    return lines + [f"after the error: {line}" for line in again][:20]


def main() -> None:
    """Run the modes named on the command line, or all."""
    torch.set_num_threads(1)
    path = pathlib.Path(sys.argv[1])
    modes = sys.argv[2:] or MODES
    function = load(path)
    runs.execute(function, DEVICE)  # fills caches, so that the next peak is exact
    plain = runs.execute(function, DEVICE)
    for mode in modes:
        print(json.dumps(run_mode(function, mode, plain)), flush=True)


if __name__ == "__main__":
    main()
