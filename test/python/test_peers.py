"""The benchmark against peers: its plumbing, and what it chooses from its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmark"


@pytest.fixture
def benchmark_path(monkeypatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    # Another module of this name is beside the tests.
    before = sys.modules.pop("models", None)
    yield
    sys.modules.pop("models", None)
    if before is not None:
        sys.modules["models"] = before


@pytest.fixture
def choice(benchmark_path) -> ModuleType:
    from peers import choice

    return choice


@pytest.fixture
def scenarios(benchmark_path) -> ModuleType:
    from peers import scenarios

    return scenarios


def point(method: str, peak: int, cpu_ratio: float) -> dict[str, object]:
    return {
        "method": method,
        "peak_bytes": peak,
        "cpu_ratio": cpu_ratio,
        "wall_ratio": 9.0,
    }


POINTS = [
    point("checkpoint:every 1", 26, 1.27),
    point("checkpoint:first 4", 51, 1.15),
    point("selective:every 1", 49, 1.20),
    point("compile:0.5", 57, 0.9),
    point("remat:planned@0.5", 50, 1.05),
    point("remat:dtr@0.5", 51, 1.04),
    {"method": "remat:planned@0.25", "failure": "OutOfMemoryError: no"},
    {"method": "compile:0.2", "failure": "no compiler"},
]


def test_the_peer_is_the_fastest_whose_peak_is_within_the_target(choice):
    found = choice.choose(POINTS, 100, 0.5)
    # "first 4" is faster but needs 51.
    assert found.static == "selective:every 1"
    assert found.static_extra == pytest.approx(0.20)
    assert found.compiled is None
    assert found.ours["planned"] == pytest.approx(0.05)
    assert found.part("planned") == pytest.approx(0.25)


def test_the_best_other_policy_is_the_fastest_that_got_there(choice):
    points = [
        *POINTS,
        point("remat:dte@0.5", 50, 1.07),
        point("remat:coop@0.5", 50, 1.06),
    ]
    assert choice.choose(POINTS, 100, 0.5).dynamic() is None  # dtr's peak is above
    name, extra = choice.choose(points, 100, 0.5).dynamic()
    assert (name, extra) == ("coop", pytest.approx(0.06))


def test_a_peak_above_the_target_is_not_counted_as_got_through(choice):
    found = choice.choose(POINTS, 100, 0.5)
    assert found.ours["dtr"] is None
    assert found.why_not["dtr"] == "peak 1.020 of target"
    assert found.part("dtr") is None


def test_failures_and_targets_that_no_peer_reaches_have_no_ratio(choice):
    found = choice.choose(POINTS, 100, 0.25)
    assert found.static is None
    assert found.ours == {"planned": None}
    assert "OutOfMemory" in found.why_not["planned"]
    assert found.part("planned") is None


def test_one_batch_in_fifty_is_four_times_as_long(scenarios):
    import models

    workload = models.build("gpt2", models.SMALL)
    make = scenarios.batches("rare_long")
    times = [make(workload, number)[0].shape[1] for number in range(100)]
    long, short = max(times), min(times)
    assert long == 4 * short
    assert [number for number, time in enumerate(times) if time == long] == [49, 99]
    assert times.count(short) == 98


@pytest.mark.parametrize("name", ["lengths", "loops"])
def test_the_step_that_sets_the_budget_has_the_longest_batch(scenarios, name):
    import models

    scenario = scenarios.SCENARIOS[name]
    workload = models.build(scenario.model, models.SMALL)
    make = scenarios.batches(name)
    times = [make(workload, n)[0].shape[1] for n in range(scenario.steps)]
    assert times[1] == max(times)
    assert len(set(times)) > 4


@pytest.mark.slow
def test_quick_measures_writes_and_resumes(tmp_path):
    folder = tmp_path / "benchmarks"
    environment = dict(os.environ, PYTHONPATH=str(BENCHMARK))
    # It takes more memory than the whole of so small a model.
    environment["PYTORCH_REMAT_PLANNER_SHARE"] = "0"

    def quick() -> dict:
        command = [sys.executable, "-m", "peers", "quick", str(folder)]
        subprocess.run(command, env=environment, check=True, timeout=600)
        return json.loads((folder / "cpu.json").read_text(encoding="utf-8"))

    data = quick()
    assert data["environment"]["device"] == "cpu"
    found = data["models"]["gpt2"]
    plain_peak = found["plain"]["peak_bytes"]
    assert plain_peak > 0
    points = {point["method"]: point for point in found["points"]}
    assert set(points) == {"checkpoint:every 1", "remat:planned@0.7"}
    for method, measured in points.items():
        assert "failure" not in measured, method
        assert measured["losses_equal"] is True, method
        assert measured["wall_s"] > 0, method
        assert measured["cpu_ratio"] > 0, method
        # A little more than the target, as this model's peak is a megabyte.
        assert 0 < measured["peak_bytes"] <= 0.8 * plain_peak, method
    assert points["remat:planned@0.7"]["counts_per_step"]["evictions"] > 0

    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| gpt2 | 70% |" in page
    assert (folder / "cpu.svg").read_text(encoding="utf-8").startswith("<?xml")
    # What is there is not measured again: times would differ.
    assert quick() == data
