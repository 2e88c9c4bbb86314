"""What a recorded trace would cost with other policies and budgets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence, Tuple

from . import _C


@dataclass(frozen=True)
class Point:
    """One policy at one budget on one trace."""

    trace: str
    policy: str
    ratio: float  # of the peak without a budget
    budget_bytes: int
    feasible: bool
    overhead: float  # simulated time over that without a budget
    evictions: int
    replays: int
    deepest_replay: int
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trace:
    """A trace that was recorded by remat or by DTR's prototype.

    Raises:
        ValueError: if the file cannot be read or is not a trace.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = Path(path).stem
        self._workload = _C.Workload(path)
        self.peak_bytes = self._workload.peak_bytes
        self.cost_ns = self._workload.cost_ns

    def simulate(
        self,
        policy: str,
        *,
        ratio: Optional[float] = None,
        budget_bytes: Optional[int] = None,
        dtr_rules: bool = False,
    ) -> Point:
        """Run the trace with ``policy``, at a share of its peak or at a budget."""
        if (ratio is None) == (budget_bytes is None):
            raise ValueError("give either a ratio or a budget")
        if budget_bytes is None:
            assert ratio is not None
            budget_bytes = int(self.peak_bytes * ratio)
        elif self.peak_bytes > 0:
            ratio = budget_bytes / self.peak_bytes
        return Point(
            trace=self.name,
            policy=policy,
            ratio=ratio or 0.0,
            budget_bytes=budget_bytes,
            **self._workload.simulate(policy, budget_bytes, dtr_rules),
        )

    def convert(self, path: str) -> None:
        """Write the trace in the other format: DTR's if ``path`` ends in .log."""
        if path.endswith(".log"):
            self._workload.write_simrd_log(path)
        else:
            self._workload.write_trace(path)


def sweep(
    traces: Sequence[Trace],
    policies: Sequence[str],
    ratios: Sequence[float],
    budgets: Sequence[int],
    *,
    dtr_rules: bool = False,
) -> Iterator[Tuple[int, Point]]:
    """Yield every point with its number, from 1."""
    number = 0
    for trace in traces:
        for policy in policies:
            for ratio in ratios:
                number += 1
                yield (
                    number,
                    trace.simulate(policy, ratio=ratio, dtr_rules=dtr_rules),
                )
            for budget in budgets:
                number += 1
                yield (
                    number,
                    trace.simulate(policy, budget_bytes=budget, dtr_rules=dtr_rules),
                )
