"""Which budgets a recorded trace runs in, and which of them to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence

from ._simulate import Point, Trace


# Feasibility is not monotone in the budget, so a grid is looked at and not searched.
GRID = [round(1.0 - 0.02 * i, 2) for i in range(48)]  # 1.0 to 0.06


@dataclass(frozen=True)
class Plan:
    """The best policy at each budget, and the budget to take."""

    trace: Trace
    best: List[Optional[Point]]  # by ratio of GRID; None: no policy gets through
    recommended: Optional[Point]

    @property
    def holes(self) -> List[float]:
        """Ratios that fail though a smaller one works."""
        feasible = [i for i, point in enumerate(self.best) if point is not None]
        last = max(feasible, default=-1)
        return [GRID[i] for i in range(last) if self.best[i] is None]


def plan(trace: Trace, policies: Sequence[str], *, most_overhead: float = 1.1) -> Plan:
    """Look at every budget of GRID with each of ``policies``.

    What is recommended is the smallest budget that costs at most ``most_overhead``
    and above which none fails; if there is none, the cheapest such budget.
    """
    best: List[Optional[Point]] = []
    for ratio in GRID:
        points = [trace.simulate(policy, ratio=ratio) for policy in policies]
        feasible = [point for point in points if point.feasible]
        best.append(min(feasible, key=lambda point: point.overhead, default=None))
    recommended: Optional[Point] = None
    for point in best:
        if point is None:
            break
        if recommended is None or point.overhead <= most_overhead:
            recommended = point
    return Plan(trace=trace, best=best, recommended=recommended)
