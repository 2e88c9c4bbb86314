"""Run the same code plainly, recorded, under chaos and within budgets, and compare."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
import torch.cuda.remat as remat
from torch.cuda.remat import _testing

import snapshots

CHAOS = "PYTORCH_REMAT_CHAOS"

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU, or an emulated one"
)
needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs (--devices 2)"
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Live bytes of one run, above what was live before it."""

    before: int
    peak: int
    floor: int

    def budget(self, ratio: float) -> int:
        """The byte limit that leaves ``ratio`` of what is not live anyway."""
        return self.before + self.floor + int(ratio * (self.peak - self.floor))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run returned, what it raised, what it did to the random streams."""

    results: dict[str, snapshots.Snapshot]
    error: str | None
    memory: Memory
    stats: remat.Stats | None
    budget: int | None = None

    def differences(self, other: Outcome) -> list[str]:
        """List what differs in ``other``, and what of its budget it overdrew."""
        if self.error != other.error:
            return [f"raised {other.error}, expected {self.error}"]
        lines = snapshots.differences(self.results, other.results)
        used = other.memory.before + other.memory.peak
        if other.budget is not None and used > other.budget:
            lines.append(f"peak {used} is above the budget {other.budget}")
        return lines


def about(size: int) -> object:
    """Compare as ``size`` does, give or take what malloc rounds a few blocks up by."""
    return pytest.approx(size, abs=64)


def with_convolutions(*ratios: float) -> tuple[float, ...]:
    """Budgets for a run with convolutions. Where torch has no oneDNN, they unfold their
    input on the CPU: a workspace that no eviction makes smaller, for which this leaves
    half of what the budget would have saved."""
    if torch.backends.mkldnn.is_available():
        return ratios
    return tuple((1 + ratio) / 2 for ratio in ratios)


@contextlib.contextmanager
def chaos_mode(*, on: bool = True) -> Iterator[None]:
    """Set the environment variable that ``enable`` looks at."""
    before = os.environ.get(CHAOS)
    os.environ[CHAOS] = "1" if on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CHAOS]
        else:
            os.environ[CHAOS] = before


def execute(function: Callable[[], object], device: str, seed: int = 0) -> Outcome:
    """Run ``function`` once, with remat as it is now, from fixed random states."""
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    before = remat.memory_allocated(device)
    remat.reset_peak_memory_stats(device)
    results: object = None
    error = None
    try:
        results = function()
    except Exception as raised:  # the comparison is about any error a user can see
        error = f"{type(raised).__name__}: {raised}"
    peak = remat.max_memory_allocated(device) - before
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
    floor = remat.memory_allocated(device) - before
    stats = None
    if remat.is_enabled(device):
        stats = remat.stats(device)
        # What the run returned is compared outside of the budget: it need not fit
        # beside what replaying it holds.
        remat.set_budget(None, device=device)
    copies = snapshots.snapshot(
        {
            "results": results,
            "random state": torch.get_rng_state(),
            "random state of the GPUs": (
                torch.cuda.get_rng_state_all() if device != "cpu" else ()
            ),
            "python random state": repr(random.getstate()),
            "numpy random state": repr(np.random.get_state(legacy=False)),
        }
    )
    return Outcome(copies, error, Memory(before, peak, max(floor, 0)), stats)


def execute_enabled(
    function: Callable[[], object],
    device: str,
    *,
    ratio: float | None = None,
    plain: Outcome | None = None,
    chaos: bool = False,
    policy: str | None = None,
) -> Outcome:
    """Run ``function`` with remat on: recorded only, under chaos, or in a budget."""
    gc.collect()
    limit = None  # no limit, whatever the environment says
    if ratio is not None:
        assert plain is not None
        now = dataclasses.replace(plain.memory, before=remat.memory_allocated(device))
        limit = now.budget(ratio)
    with chaos_mode(on=chaos):
        remat.enable(
            float("inf") if limit is None else limit, device=device, policy=policy
        )
    try:
        remat.reset_stats(device)
        outcome = execute(function, device)
        _testing.check_invariants()
    finally:
        remat.disable()
    return dataclasses.replace(outcome, budget=limit)


def run_twice(
    function: Callable[[], object],
    device: str = "cpu",
    *,
    budgets: Sequence[float] = (),
    chaos: bool = True,
    expect_replays: bool = True,
    expect_error: str | None = None,
) -> dict[str, Outcome]:
    """Assert that a plain run and runs with remat are equal bit for bit.

    Args:
        function: returns a nest of tensors; draws its randomness from the global
            streams, which are seeded alike before each run and compared after it.
        budgets: fractions of what the plain run holds above its floor.
        chaos: also run with everything evictable evicted after each op.
        expect_replays: assert that chaos did evict and replay, so that the test
            shows what it is named for.
        expect_error: what the text of the error contains that every run raises.

    Returns:
        The outcomes by name: ``plain``, ``recorded``, ``chaos`` and ``budget 0.5``.
    """
    assert not remat.is_enabled(device)
    plain = execute(function, device)
    if expect_error is None:
        assert plain.error is None, plain.error
    else:
        assert plain.error is not None
        assert expect_error in plain.error
    outcomes = {"plain": plain}
    outcomes["recorded"] = execute_enabled(function, device)
    for ratio in budgets:
        outcomes[f"budget {ratio}"] = execute_enabled(
            function, device, ratio=ratio, plain=plain
        )
    if chaos:
        outcomes["chaos"] = execute_enabled(function, device, chaos=True)
    for name, outcome in outcomes.items():
        lines = plain.differences(outcome)
        assert not lines, "\n".join([f"{name} differs from plain:", *lines])
    if chaos and expect_replays:
        stats = outcomes["chaos"].stats
        assert stats.evictions > 0, "chaos evicted nothing: the test shows nothing"
        assert stats.replays > 0, "chaos replayed nothing: the test shows nothing"
    return outcomes
