"""Trainings whose batches differ from step to step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from models import CPU, REAL, Workload

Batch = tuple[object, ...]
MakeBatch = Callable[[Workload, int], Batch]


@dataclass(frozen=True)
class Scenario:
    """What changes, and the budget of ours: a share of the plain peak of step 1."""

    model: str
    make_batch: MakeBatch
    steps: int
    share: float
    peers: Mapping[str, tuple[str, ...]]  # by the model's size
    about: str


LONG_EVERY = 50
TIMES_AS_LONG = 4


def _rare_long(workload: Workload, number: int) -> Batch:
    batch, longest = _usual_shape(workload)
    is_long = number % LONG_EVERY == LONG_EVERY - 1
    time = longest if is_long else longest // TIMES_AS_LONG
    return _tokens(workload, batch * TIMES_AS_LONG, time)


def _lengths(workload: Workload, number: int) -> Batch:
    batch, longest = _usual_shape(workload)
    return _tokens(workload, 2 * batch, _length(longest, number))


def _loops(workload: Workload, number: int) -> Batch:
    batch, longest = _usual_shape(workload)
    return _tokens(workload, batch, _length(longest, number))


def _length(longest: int, number: int) -> int:
    if number == 1:  # the budget is by its peak
        return longest
    return random.Random(number).randrange(longest // 8, longest + 1)


def _usual_shape(workload: Workload) -> tuple[int, int]:
    batch, time = workload.make_batch()[0].shape
    return batch, time


def _tokens(workload: Workload, batch: int, time: int) -> Batch:
    symbols = workload.module.head.out_features
    ids = torch.randint(symbols, (batch, time))
    return ids, torch.randint(symbols, (batch, time))


def _trees(workload: Workload, number: int) -> Batch:
    ids, classes = workload.make_batch()
    shape = random.Random(number)
    return ids, lambda leaves: shape.randint(1, leaves - 1), classes


SCENARIOS = {
    "rare_long": Scenario(
        "moe",
        _rare_long,
        steps=200,
        share=1.7,
        peers={
            CPU: ("checkpoint:every 1", "checkpoint:first 5", "selective:every 1"),
            REAL: ("checkpoint:every 1", "checkpoint:every 2", "selective:every 1"),
        },
        about=f"one batch in {LONG_EVERY} is {TIMES_AS_LONG} times as long; the budget "
        "is 1.7 times what the short ones need",
    ),
    "lengths": Scenario(
        "moe",
        _lengths,
        steps=60,
        share=0.5,
        peers={
            CPU: ("checkpoint:every 1", "checkpoint:first 3", "compile:0.5"),
            REAL: ("checkpoint:every 1", "checkpoint:first 10"),
        },
        about="every batch has another length; the budget is half of the peak of the "
        "longest",
    ),
    "loops": Scenario(
        "lstm",
        _loops,
        steps=60,
        share=0.5,
        peers={
            CPU: ("checkpoint:2 steps", "checkpoint:8 steps", "compile:0.5"),
            REAL: ("checkpoint:2 steps", "checkpoint:8 steps", "checkpoint:16 steps"),
        },
        about="a loop over cells that runs another number of times for every batch; "
        "the budget is half of the peak of the longest",
    ),
    "trees": Scenario(
        "tree_lstm",
        _trees,
        steps=60,
        share=0.5,
        # A larger segment would draw another shape when it runs again.
        peers={
            CPU: ("checkpoint:2 leaves", "compile:0.5"),
            REAL: ("checkpoint:2 leaves",),
        },
        about="every batch has a tree of another shape; the budget is half of the "
        "peak of one",
    ),
}


def batches(name: str | None) -> MakeBatch | None:
    """Return what makes the batches of a scenario; None for the model's own."""
    return SCENARIOS[name].make_batch if name else None
