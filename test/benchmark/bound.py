"""A bound on what any choice of evictions makes a recorded step recompute.

    python test/benchmark/bound.py step.trace 0.5 0.3

At the moment at which the step needs the most memory, each value that is read later is
either there, or the op that made it runs again, for which its operands are there or are
made again. The least cost of that within a budget, a share of the peak, is a linear
program; what happens at other moments can only add to it. Its solution in whole numbers
is what the planner looks for: Note [What to keep at the peak] in ``sim/Retention.h``.
Needs SciPy.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array


class Program:
    """The linear program of one trace."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        size: dict[int, int] = {}
        born: dict[int, int] = {}
        maker: dict[int, int] = {}
        reads: dict[int, int] = {}  # the last
        death: dict[int, int] = {}
        ops: list[dict[str, Any]] = []
        for time, event in enumerate(events):
            made = [[event["version"], event["size"]]] if "version" in event else []
            if "op" in event:
                made = [output for output in event["outputs"] if output[0]]
                maker.update({number: len(ops) for number, _ in made})
                reads.update(dict.fromkeys(event["inputs"], time))
                death.update({old: time for old, _ in event["overwrites"]})
                ops.append(event)
            size.update(dict(made))
            born.update({number: time for number, _ in made})
            if "access" in event:
                reads[event["access"]] = time
            if "death" in event:
                death[event["death"]] = time
        end = len(events)
        change = np.zeros(end + 1)
        for number in size:
            change[born[number]] += size[number]
            change[death.get(number, end)] -= size[number]
        live = np.cumsum(change)
        peak = int(np.argmax(live))
        self.peak_bytes = float(live[peak])
        self.cost_ns = sum(op["cost"] for op in ops)
        alive = [n for n in size if born[n] <= peak < death.get(n, end)]
        self._fixed_bytes = sum(size[n] for n in alive if n not in maker)
        values = [n for n in maker if born[n] <= peak]
        place = {number: i for i, number in enumerate(values)}
        first_op = len(values)
        count = first_op + max((maker[n] for n in values), default=-1) + 1
        # Rows of sum(coefficient x variable) <= limit: a value is there (its variable),
        # or its op runs again (that of the op).
        rows: list[dict[int, int]] = []
        self._limits: list[float] = []
        for number in values:
            if reads.get(number, -1) > peak or death.get(number, end) == end:
                rows.append({place[number]: -1, first_op + maker[number]: -1})
                self._limits.append(-1)
        for op in range(count - first_op):
            for number in ops[op]["inputs"]:
                if number in place:
                    again = first_op + maker[number]
                    rows.append({first_op + op: 1, place[number]: -1, again: -1})
                    self._limits.append(0)
        rows.append({place[number]: size[number] for number in values})
        entries = [(r, c, v) for r, row in enumerate(rows) for c, v in row.items()]
        r, c, v = zip(*entries)
        self._matrix = csr_array((v, (r, c)), shape=(len(rows), count))
        self._cost = np.zeros(count)
        self._cost[first_op:] = [op["cost"] for op in ops[: count - first_op]]
        event = events[peak]
        in_use = {*event.get("inputs", ()), *(n for n, _ in event.get("outputs", ()))}
        self._lowest = np.zeros(count)
        self._lowest[[place[n] for n in in_use if n in place]] = 1

    def least_recompute_ns(self, budget_bytes: float) -> float | None:
        """Return the bound; None if nothing fits."""
        done = linprog(
            self._cost,
            A_ub=self._matrix,
            b_ub=[*self._limits, budget_bytes - self._fixed_bytes],
            bounds=np.stack([self._lowest, np.ones_like(self._cost)], 1),
        )
        return float(done.fun) if done.status == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("ratio", type=float, nargs="+")
    options = parser.parse_args()
    with options.trace.open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in itertools.islice(lines, 1, None)]
    program = Program(events)
    for ratio in options.ratio:
        least = program.least_recompute_ns(ratio * program.peak_bytes)
        said = "does not fit" if least is None else f"{least / program.cost_ns:.4f}"
        print(f"{options.trace.name} {ratio:g} {said}")


if __name__ == "__main__":
    main()
