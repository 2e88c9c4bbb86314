"""Finds the budget of ours that makes a step's measured peak meet a target.

The budget bounds what PyTorch's allocator holds; the meter also sees workspaces of
libraries and our own records. How much those add depends on the budget: it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from .methods import Method
from .runs import Problem, Run, RunFailedError

STEPS = 7  # plans made in the background take memory from the third on
ATTEMPTS = 4
SLACK = 0.003  # of the target: runs of the same differ by as much
NEAR = 0.97  # of the target: not worth another attempt


@dataclass(frozen=True)
class PlainProfile:
    """What a plain run of a problem needs."""

    peak_bytes: int  # beyond what is held before a step
    held_bytes: int
    allocated_before_bytes: int  # of the held ones, what the budget counts
    labels: list[str]  # of the model's segments


def plain_profile(problem: Problem, steps: int = 3) -> PlainProfile:
    """Train without anything; the first step does not count."""
    with Run(problem, Method("plain")) as run:
        for _ in range(steps):
            run.step()
        if run.failure:
            raise RunFailedError(f"{problem.model}, plain: {run.failure}")
        last = run.steps[-1]
        # A GPU's allocator counts what it has reserved, which outlasts the first step.
        before = "allocated_before_bytes" if problem.device == "cpu" else "held_bytes"
        return PlainProfile(
            max(step["peak_bytes"] for step in run.steps[1:]),
            last["held_bytes"],
            last[before],
            run.ready["labels"],
        )


class BudgetFinder:
    """Finds budgets for one problem, each from what the ones before showed."""

    def __init__(
        self, problem: Problem, plain: PlainProfile, attempts: int = ATTEMPTS
    ) -> None:
        self._attempts = attempts
        self._problem = problem
        self._plain = plain
        self._unmanaged = 0  # bytes of a peak that the budget does not count

    def find(self, method: Method) -> tuple[int, str | None]:
        """Return a budget in bytes for ``method`` and why it cannot train within it.

        Of those tried the largest whose peak was at most the target; where none was,
        the last one.
        """
        target = int(method.share * self._plain.peak_bytes)
        aim = int(target * (1 - SLACK))
        budget = self._plain.allocated_before_bytes + aim - self._unmanaged
        if self._problem.device != "cpu":
            return budget, None  # bytes reserved are never less than bytes allocated
        best = None
        for _ in range(self._attempts):
            with Run(self._problem, method, budget) as run:
                for _ in range(STEPS):
                    run.step()
                if run.failure:
                    return (budget, run.failure) if best is None else (best, None)
            peak = max(step["peak_bytes"] for step in run.steps[1:])
            if peak <= target:
                best = max(best or 0, budget)
                if peak >= NEAR * target:
                    break
            budget += aim - peak
            if best is not None and budget <= best:
                break
        if best is None:
            return budget, None
        self._unmanaged = self._plain.allocated_before_bytes + aim - best
        return best, None
