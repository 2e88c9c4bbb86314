"""Measures what is missing in a store, a group of runs at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import models

from .budgets import ATTEMPTS, BudgetFinder, PlainProfile, plain_profile
from .methods import COMPILED, Method
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
    store: Store,
    name: str,
    device: str,
    policies: Sequence[str],
    *,
    compiled: bool,
    say: Say,
    group: int = GROUP,
) -> None:
    """Measure the methods of a scenario that have no point yet."""
    scenario = SCENARIOS[name]
    size = models.CPU if device == "cpu" else models.REAL
    problem = Problem(scenario.model, size, device, scenario=name, patience_s=900)
    if store.scenario(name) is None:
        say(f"{name}: plain")
        profile = dataclasses.asdict(plain_profile(problem, 2))
        about = dataclasses.asdict(scenario)
        del about["make_batch"], about["peers"]
        store.set_scenario(name, {**about, "size": size, "plain": profile})
    plain = PlainProfile(**store.scenario(name)["plain"])
    finder = BudgetFinder(problem, plain)
    methods = [Method.parse(peer) for peer in scenario.peers[size]]
    if not compiled:
        methods = [m for m in methods if m.family not in COMPILED]
    methods += [Method("remat", f"{policy}@{scenario.share:g}") for policy in policies]
    if device == "cpu":
        # The plain one a second time: what it comes to is the noise.
        methods.insert(0, Method("plain"))
    there = {point["method"] for point in store.scenario(name)["points"]}
    missing = [method for method in methods if str(method) not in there]
    for start in range(0, len(missing), group):
        going = missing[start : start + group]
        budgets = {}
        for method in going:
            if method.family == "remat":
                say(f"{name}: a budget for {method}")
                budgets[method] = finder.find(method)[0]
        points = _all_steps(problem, going, budgets, scenario.steps, say)
        store.add_to_scenario(name, points)


def _all_steps(
    problem: Problem,
    methods: Sequence[Method],
    budgets: dict[Method, int],
    steps: int,
    say: Say,
) -> list[dict[str, Any]]:
    """Run ``steps`` steps with each method; return what all of them took together."""
    timing = Timing(warm_up=0, rounds=steps, beside=False)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done % 10 == 0:
            say(f"{problem.scenario}: step {done} of {steps}")

    with contextlib.ExitStack() as stack:
        beside = stack.enter_context(Run(problem, Method("plain")))
        runs = [
            stack.enter_context(Run(problem, method, budgets.get(method)))
            for method in methods
        ]
        points = step_in_turn(beside, runs, timing, advance)
        for point, run in zip(points, runs):
            if "failure" in point:
                point["failed_at_step"] = len(run.steps)
                continue
            # The first step makes the optimizer's state, too.
            point["peak_bytes"] = max(step["peak_bytes"] for step in run.steps[1:])
            for clock in ("wall", "cpu"):
                total = sum(step[f"{clock}_s"] for step in run.steps)
                plainly = sum(step[f"{clock}_s"] for step in beside.steps)
                point[f"total_{clock}_s"] = round(total, 3)
                # In timing mode only the device has a clock.
                ratio = round(total / plainly, 4) if plainly else None
                point[f"total_{clock}_ratio"] = ratio
    return points


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
