"""Which peer a user would take at a memory target, and how ours compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .methods import COMPILED, STATIC_EAGER, Method


@dataclass(frozen=True)
class Choice:
    """One model at one target. Times are extra: step time over plain's, less 1."""

    target: float
    static: str | None  # the best static eager peer, None if none gets there
    static_extra: float | None
    compiled: str | None
    compiled_extra: float | None
    ours: dict[str, float | None]  # by policy; None: did not get there
    why_not: dict[str, str]  # by policy

    def part(self, policy: str) -> float | None:
        """Our extra time over the best static peer's, None where one is missing."""
        extra = self.ours.get(policy)
        if extra is None or not self.static_extra or self.static_extra <= 0:
            return None
        return extra / self.static_extra

    def dynamic(self) -> tuple[str, float] | None:
        """The best of the other policies that got there, and its extra time."""
        there = {p: e for p, e in self.ours.items() if e is not None and p != "planned"}
        return min(there.items(), key=lambda item: item[1], default=None)


def extra(point: dict[str, Any]) -> float:
    """Return the extra time of a point: by CPU time where there is one.

    CPU time is that of all threads, so planning in the background is part of it, and
    what else the machine does is not.
    """
    ratio = point["cpu_ratio"] if point.get("cpu_ratio") else point["wall_ratio"]
    return float(ratio) - 1


def best(
    points: Sequence[dict[str, Any]], families: Sequence[str], limit_bytes: float
) -> dict[str, Any] | None:
    """Return the fastest point of ``families`` whose peak is within the limit."""
    fitting = [
        point
        for point in points
        if Method.parse(point["method"]).family in families
        and "failure" not in point
        and point["peak_bytes"] <= limit_bytes
    ]
    return min(fitting, key=extra, default=None)


def lowest_peak(
    points: Sequence[dict[str, Any]], families: Sequence[str]
) -> dict[str, Any] | None:
    """Return the point of ``families`` with the lowest peak."""
    ran = [
        point
        for point in points
        if Method.parse(point["method"]).family in families and "failure" not in point
    ]
    return min(ran, key=lambda point: point["peak_bytes"], default=None)


def choose(
    points: Sequence[dict[str, Any]], plain_peak_bytes: int, target: float
) -> Choice:
    """Compare what is there at ``target``, a share of the plain peak."""
    limit = target * plain_peak_bytes
    static = best(points, STATIC_EAGER, limit)
    compiled = best(points, COMPILED, limit)
    ours: dict[str, float | None] = {}
    why_not = {}
    for point in points:
        method = Method.parse(point["method"])
        if method.family != "remat" or method.share != target:
            continue
        ours[method.policy] = None
        if "failure" in point:
            why_not[method.policy] = point["failure"]
        elif point["peak_bytes"] > limit:
            why_not[method.policy] = f"peak {point['peak_bytes'] / limit:.3f} of target"
        else:
            ours[method.policy] = extra(point)
    return Choice(
        target,
        static and static["method"],
        static and extra(static),
        compiled and compiled["method"],
        compiled and extra(compiled),
        ours,
        why_not,
    )


def dearest_survived(
    points: Sequence[dict[str, Any]], policy: str
) -> dict[str, Any] | None:
    """Return the point of ``policy`` with the smallest share that it got through."""
    ran = [
        point
        for point in points
        if point["method"].startswith(f"remat:{policy}@") and "failure" not in point
    ]
    return min(ran, key=lambda p: Method.parse(p["method"]).share, default=None)
