"""How far policies are from the least compute, on programs small enough to know it."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from torch.cuda.remat._simulate import Trace

from optimum import Program, least_compute


def training_step(layers: int, seed: int, *, skip: int = 0) -> Program:
    """A chain that is read backwards, with a link over ``skip`` layers if not 0."""
    rng = random.Random(seed)
    costs, sizes, inputs = [], [], []
    for layer in range(layers):
        costs.append(rng.randint(5, 50))
        sizes.append(rng.randint(4, 16))
        inputs.append([layer - 1] if layer else [])
        if skip and layer >= skip and layer % skip == 0:
            inputs[-1].append(layer - skip)
    for layer in reversed(range(layers)):
        costs.append(rng.randint(5, 50))
        sizes.append(rng.randint(4, 8))
        inputs.append([len(inputs) - 1, layer] if len(inputs) > layers else [layer])
    return Program(costs, sizes, inputs, held=[len(inputs) - 1])


def compute_of(trace: Trace, policy: str, budget: int) -> float | None:
    point = trace.simulate(policy, budget_bytes=budget)
    return point.overhead * trace.cost_ns if point.feasible else None


def test_least_compute_by_hand() -> None:
    # v0 -> v1 -> v2 -> v3, which also reads v0. Sizes 4, costs 10, 20, 30, 40, and a
    # constant of 1. With room for three no value is made twice; v3, v2 and v0 are read
    # and made together, so that less does not do.
    program = Program([10, 20, 30, 40], [4] * 4, [[], [0], [1], [0, 2]], held=[3])
    assert least_compute(program, 13) == 100
    assert least_compute(program, 12) is None
    # v4 reads v0 and v3. With room for two, v0 goes for v2 and comes back for 10.
    program = Program([10, 20, 30, 40], [4] * 4, [[], [0], [1], [2]], held=[3])
    program.costs.append(50)
    program.sizes.append(0)
    program.inputs.append([0, 3])
    program.held = [4]
    assert least_compute(program, 13) == 150
    assert least_compute(program, 9) == 160


@pytest.mark.parametrize("skip", [0, 3])
def test_planned_is_close_to_the_optimum(tmp_path: Path, skip: int) -> None:
    ratios: dict[str, list[float]] = {"planned": [], "dtr": [], "msps": [], "lru": []}
    for seed in range(4):
        program = training_step(7, seed, skip=skip)
        path = tmp_path / f"{seed}.log"
        path.write_text(program.log())
        trace = Trace(str(path))
        for share in (0.8, 0.65, 0.5):
            budget = int(trace.peak_bytes * share)
            least = least_compute(program, budget)
            if least is None:
                assert compute_of(trace, "planned", budget) is None
                continue
            for policy, found in ratios.items():
                compute = compute_of(trace, policy, budget)
                assert compute is None or compute >= least - 1e-6
                assert compute is not None or policy != "planned"
                if compute is not None:
                    found.append(compute / least)
    for policy, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{policy}: {mean:.4f} of the least, {max(found):.4f} at worst")
    assert max(ratios["planned"]) <= 1.05
