"""Measures what is missing in a store, a group of runs at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .budgets import ATTEMPTS, BudgetFinder, PlainProfile, plain_profile
from .methods import Method
from .runs import Problem, Run, RunFailedError, Timing, step_in_turn
from .scenarios import SCENARIOS
from .store import Store

GROUP = 6  # runs beside the plain one: their memory must fit at once
Say = Callable[[str], None]


def measure_model(
    store: Store,
    problem: Problem,
    choose_methods: Callable[[list[str]], Sequence[Method]],
    timing: Timing,
    *,
    say: Say,
    group: int = GROUP,
    attempts: int = ATTEMPTS,
) -> None:
    """Measure the methods that have no point yet.

    Args:
        choose_methods: takes the labels of the model's segments.
        say: takes a line about what is being done.
        attempts: runs to find a budget with.
    """
    model = problem.model
    there = store.plain(model)
    if there is None:
        say(f"{model}: plain")
        plain = plain_profile(problem)
        store.set_plain(model, problem.size, dataclasses.asdict(plain))
    else:
        plain = PlainProfile(**there)
    finder = BudgetFinder(problem, plain, attempts)
    missing = store.missing(model, list(choose_methods(plain.labels)))
    for start in range(0, len(missing), group):
        methods = missing[start : start + group]
        budgets: dict[Method, int] = {}
        points: list[dict[str, Any]] = []
        for method in methods:
            if method.family != "remat":
                continue
            say(f"{model}: a budget for {method}")
            budgets[method], failure = finder.find(method)
            if failure:
                points.append(
                    {
                        "method": str(method),
                        "budget_bytes": budgets[method],
                        "failure": failure,
                    }
                )
        failed = {point["method"] for point in points}
        going = [method for method in methods if str(method) not in failed]
        if going:
            say(f"{model}: {', '.join(map(str, going))}")
            with contextlib.ExitStack() as stack:
                beside = stack.enter_context(Run(problem, Method("plain")))
                runs = [
                    stack.enter_context(Run(problem, method, budgets.get(method)))
                    for method in going
                ]
                points += step_in_turn(beside, runs, timing)
        store.add(model, points)


def measure_scenario(
    store: Store, name: str, policies: Sequence[str], *, compiled: bool, say: Say
) -> None:
    """Measure a scenario, if it is not there: all of its steps, with all methods."""
    if name in store.data["scenarios"]:
        return
    scenario = SCENARIOS[name]
    problem = Problem(scenario.model, "cpu", scenario=name, patience_s=900)
    say(f"{name}: plain")
    plain = plain_profile(problem, 2)
    target = int(scenario.share * plain.peak_bytes)
    finder = BudgetFinder(problem, plain)
    methods = [Method.parse(peer) for peer in scenario.peers]
    if not compiled:
        methods = [m for m in methods if not m.family.startswith("compile")]
    ours = [Method("remat", f"{policy}@{scenario.share:g}") for policy in policies]
    timing = Timing(warm_up=0, rounds=scenario.steps, beside=False)
    budgets = {}
    for method in ours:
        say(f"{name}: a budget for {method}")
        budgets[method] = finder.find(method)[0]
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        say(f"{name}: step {done} of {scenario.steps}")

    with contextlib.ExitStack() as stack:
        beside = stack.enter_context(Run(problem, Method("plain")))
        # The plain one a second time: what it comes to is the noise.
        runs = [
            stack.enter_context(Run(problem, method, budgets.get(method)))
            for method in [Method("plain"), *methods, *ours]
        ]
        points = step_in_turn(beside, runs, timing, advance)
        for point, run in zip(points, runs):
            if "failure" not in point:
                for clock in ("wall_s", "cpu_s"):
                    total = sum(step[clock] for step in run.steps)
                    plainly = sum(step[clock] for step in beside.steps)
                    point[f"total_{clock}"] = round(total, 3)
                    point[f"total_{clock[:-2]}_ratio"] = round(total / plainly, 4)
    about = dataclasses.asdict(scenario)
    about.pop("make_batch")
    store.data["scenarios"][name] = {
        **about,
        "target_bytes": target,
        "points": points,
    }
    store.save()


def measure_records(store: Store, problem: Problem, *, say: Say) -> None:
    """Measure how many bytes the runtime's records take, if that is not there.

    Nothing is evicted, and both runs hold the same tensors; what the recording one
    holds beyond PyTorch's allocator more than the plain one is its records.
    """
    there = store.data.setdefault("records", {})
    if problem.model in there:
        return
    say(f"{problem.model}: records")
    found = []
    for method in (Method("plain"), Method("remat", "planned@1")):
        with Run(problem, method) as run:
            for _ in range(3):
                run.step()
            found.append(run.records())
            if run.failure:
                raise RunFailedError(f"{problem.model}, {method}: {run.failure}")
    plain, recorded = found
    there[problem.model] = {
        "bytes": recorded["unmanaged_bytes"] - plain["unmanaged_bytes"],
        "storages": recorded["storages"],
        "op_records": recorded["op_records"],
    }
    store.save()
