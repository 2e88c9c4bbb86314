"""Processes that train, stepped in turn so that a busy machine slows all alike."""

from __future__ import annotations

import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .counters import compiled_meter
from .methods import Method

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Problem:
    """What is trained, where, and for how long a step or a compilation may take."""

    model: str
    size: str
    device: str = "cpu"
    scenario: str | None = None
    patience_s: float = 300


class RunFailedError(Exception):
    """A training ended with an exception, or took too long; the text says why."""


@dataclass
class Run:
    """A training process and what its steps took."""

    problem: Problem
    method: Method
    budget_bytes: int | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    def __post_init__(self) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        paths = [str(HERE.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment.pop("PYTORCH_REMAT_BUDGET", None)
        if self.problem.device == "cpu":
            environment["LD_PRELOAD"] = str(compiled_meter())
        # Timed together with others: code compiled before must not be found.
        environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        order = {
            "model": self.problem.model,
            "size": self.problem.size,
            "device": self.problem.device,
            "scenario": self.problem.scenario,
            "method": str(self.method),
            "budget_bytes": self.budget_bytes,
        }
        self.ready: dict[str, Any] = self._ask(json.dumps(order)) or {}

    def step(self) -> None:
        """Train one step, if all steps before were possible."""
        reply = self._ask("step")
        if reply is not None:
            self.steps.append(reply)

    def counted(self) -> dict[str, Any]:
        """Return our runtime's counts since the last call; empty for other methods."""
        return self._ask("counted") or {}

    def records(self) -> dict[str, Any]:
        """Train one step; return what records of ops there are at its deepest."""
        return self._ask("records") or {}

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, line: str) -> dict[str, Any] | None:
        if self.failure:
            return None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            reply = self._read()
        except BrokenPipeError:
            reply = {"error": self._ending()}
        if "error" in reply:
            self.failure = reply["error"]
            return None
        return reply

    def _ending(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read().strip().splitlines() or ["nothing"]
        return f"the process ended with {code}; its last words: {said[-1][:300]}"

    def _read(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self.problem.patience_s):
                self._process.kill()
                return {"error": f"no answer within {self.problem.patience_s:g} s"}
        line = self._process.stdout.readline()
        if not line:
            return {"error": self._ending()}
        return json.loads(line)


@dataclass(frozen=True)
class Timing:
    """How often runs are stepped: ``warm_up`` rounds are not timed.

    ``beside``: the plain run is stepped before and after each step of another, and the
    step compared with both. A busy machine changes within a round. Without it the plain
    run is stepped once a round, so that all do the same step of a scenario.
    """

    warm_up: int = 3
    rounds: int = 7
    beside: bool = True


@dataclass
class _Pair:
    """A step and the plain ones beside it."""

    step: dict[str, Any]
    plain: list[dict[str, Any]]

    def ratio(self, name: str) -> float:
        return self.step[name] / statistics.mean(step[name] for step in self.plain)


def step_in_turn(
    plain: Run,
    others: list[Run],
    timing: Timing,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Step all runs, one step of each in turn; return what the others came to.

    A loss is equal if it has the same bits as that of the plain run's step.

    Args:
        advance: called after each round.

    Raises:
        RunFailedError: if the plain run fails.
    """
    pairs: dict[int, list[_Pair]] = {id(run): [] for run in others}
    for round_ in range(timing.warm_up + timing.rounds):
        if round_ == timing.warm_up:
            for run in others:
                run.counted()
        first = round_ % len(others)  # no run always follows the same other one
        before = _plain_step(plain)
        for run in others[first:] + others[:first]:
            run.step()
            beside = [before]
            if timing.beside:
                before = _plain_step(plain)
                beside.append(before)
            if not run.failure:
                pairs[id(run)].append(_Pair(run.steps[-1], beside))
        advance()
    return [_result(run, plain, pairs[id(run)], timing) for run in others]


def _plain_step(plain: Run) -> dict[str, Any]:
    plain.step()
    if plain.failure:
        raise RunFailedError(f"{plain.problem.model}, plain: {plain.failure}")
    return plain.steps[-1]


def _result(run: Run, plain: Run, pairs: list[_Pair], timing: Timing) -> dict[str, Any]:
    counts = run.counted()
    result: dict[str, Any] = {"method": str(run.method)}
    if run.budget_bytes is not None:
        result["budget_bytes"] = run.budget_bytes
    if run.failure:
        return {**result, "failure": run.failure}
    timed = pairs[timing.warm_up :]
    result.update(
        peak_bytes=max(pair.step["peak_bytes"] for pair in timed),
        held_bytes=timed[-1].step["held_bytes"],
    )
    for clock in ("wall", "cpu"):
        name = f"{clock}_s"
        result[name] = round(statistics.median(p.step[name] for p in timed), 6)
        if not all(step[name] for pair in timed for step in pair.plain):
            result[f"{clock}_ratio"] = (
                None  # in timing mode only the device has a clock
            )
            continue
        ratios = [pair.ratio(name) for pair in timed]
        result[f"{clock}_ratio"] = round(statistics.median(ratios), 4)
        if len(ratios) > 3:
            low, _, high = statistics.quantiles(ratios, n=4)
            result[f"{clock}_ratio_quartiles"] = [round(low, 4), round(high, 4)]
    losses = [step["loss"] for step in run.steps]
    result["losses_equal"] = losses == [s["loss"] for s in plain.steps[: len(losses)]]
    if counts:
        result["max_replay_depth"] = counts.pop("max_replay_depth")
        result["counts_per_step"] = {
            name: round(count / timing.rounds) for name, count in counts.items()
        }
    return result
