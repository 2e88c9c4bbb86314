"""The least total compute of a small program within a budget, as a test oracle.

Note [Mixed-integer program]
The program runs its ops in order. Before each of them any earlier ones may be run
again: stage t runs a subset of ops 0..t in order, and op t. A slot (t, k) is the
place of op k in stage t. R[t, k] says whether it is run there, P[t, k, i] whether the
value that op i makes is in memory meanwhile: it was in the slot before or is made
here; operands and result of what runs are; all together fit in the budget. Only R
need be whole numbers: a value that is needed later must have been there in full.

That is the formulation of Checkmate (Jain et al., MLSys 2020), with one set of
variables for what it splits into saving and freeing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix


@dataclass
class Program:
    """Ops with one result each; ``inputs`` are numbers of earlier ones."""

    costs: list[int]
    sizes: list[int]
    inputs: list[list[int]]
    constant: int = 1  # bytes that the first ops read
    held: list[int] = field(default_factory=list)  # results wanted at the end

    def log(self) -> str:
        """As a log of DTR's prototype; a result is released after its last use."""
        count = len(self.costs)
        last_use = list(range(count))
        for op, inputs in enumerate(self.inputs):
            for value in inputs:
                last_use[value] = op
        lines: list[dict[str, object]] = [
            {"INSTRUCTION": "CONSTANT", "NAME": "x"},
            {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": str(self.constant)},
        ]
        for op, inputs in enumerate(self.inputs):
            name = f"v{op}"
            lines += [
                {
                    "INSTRUCTION": "CALL",
                    "NAME": "f",
                    "ARGS": [f"v{value}" for value in inputs] or ["x"],
                    "RESULT": [name],
                    "TIME": str(self.costs[op]),
                },
                {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(self.sizes[op])},
                {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": "-1"},
            ]
            lines += [
                {"INSTRUCTION": "RELEASE", "NAME": f"v{value}"}
                for value in range(op + 1)
                if last_use[value] == op and value not in self.held
            ]
        return "".join(json.dumps(line) + "\n" for line in lines)


def least_compute(program: Program, budget: int) -> int | None:
    """Return the least total cost, or None if nothing fits in ``budget``."""
    count = len(program.costs)
    slots = [(stage, op) for stage in range(count) for op in range(stage + 1)]
    runs = {slot: number for number, slot in enumerate(slots)}
    width = len(slots) * (1 + count)

    def present(slot: int, value: int) -> int:
        return len(slots) + slot * count + value

    rows: list[tuple[dict[int, float], float, float]] = []
    lower, upper = np.zeros(width), np.ones(width)
    for number, (stage, op) in enumerate(slots):
        if op == stage:
            lower[number] = 1
        for value in [*program.inputs[op], op]:
            rows.append(({present(number, value): 1, number: -1}, 0, np.inf))
        for value in range(count):
            terms = {present(number, value): 1.0}
            if number > 0:
                terms[present(number - 1, value)] = -1
            if value == op:
                terms[number] = -1
            rows.append((terms, -np.inf, 0))
        memory = {
            present(number, value): float(program.sizes[value])
            for value in range(count)
        }
        rows.append((memory, -np.inf, budget - program.constant))
    for value in program.held:
        lower[present(len(slots) - 1, value)] = 1
    entries = [
        (row, column, factor)
        for row, (terms, _, _) in enumerate(rows)
        for column, factor in terms.items()
    ]
    matrix = coo_matrix(
        ([e[2] for e in entries], ([e[0] for e in entries], [e[1] for e in entries])),
        shape=(len(rows), width),
    )
    objective = np.zeros(width)
    for (_, op), number in runs.items():
        objective[number] = program.costs[op]
    whole = np.zeros(width)
    whole[: len(slots)] = 1
    solved = milp(
        objective,
        constraints=LinearConstraint(
            matrix.tocsr(), [row[1] for row in rows], [row[2] for row in rows]
        ),
        bounds=Bounds(lower, upper),
        integrality=whole,
        options={"time_limit": 60},
    )
    if solved.status == 2:
        return None
    if solved.status != 0:
        raise RuntimeError(f"no optimum within the time limit: {solved.message}")
    return round(solved.fun)
