"""Trainings whose batches differ from step to step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from models import Workload

Batch = tuple[object, ...]
MakeBatch = Callable[[Workload, int], Batch]


@dataclass(frozen=True)
class Scenario:
    """What changes, and the budget of ours: a share of the plain peak of step 1."""

    model: str
    make_batch: MakeBatch
    steps: int
    share: float
    peers: tuple[str, ...]
    about: str


LONG, SHORT = 128, 32  # tokens
LONG_EVERY = 50


def _rare_long(workload: Workload, number: int) -> Batch:
    is_long = number % LONG_EVERY == LONG_EVERY - 1
    return _tokens(workload, LONG if is_long else SHORT, 16)


def _lengths(workload: Workload, number: int) -> Batch:
    if number == 1:
        return _tokens(workload, LONG, 8)  # the longest: the budget is by its peak
    return _tokens(workload, random.Random(number).randrange(16, LONG + 1), 8)


def _tokens(workload: Workload, time: int, batch: int) -> Batch:
    symbols = workload.module.head.out_features
    ids = torch.randint(symbols, (batch, time))
    return ids, torch.randint(symbols, (batch, time))


def _trees(workload: Workload, number: int) -> Batch:
    ids, classes = workload.make_batch()
    shape = random.Random(number)
    return ids, lambda leaves: shape.randint(1, leaves - 1), classes


SCENARIOS = {
    "rare_long": Scenario(
        "gpt2",
        _rare_long,
        steps=200,
        share=1.05,
        peers=("checkpoint:every 1", "checkpoint:first 6", "selective:every 1"),
        about=f"one batch in {LONG_EVERY} is {LONG // SHORT} times as long; the budget "
        "is what the short ones need",
    ),
    "lengths": Scenario(
        "gpt2",
        _lengths,
        steps=60,
        share=0.5,
        peers=("checkpoint:every 1", "checkpoint:first 5", "compile:0.5"),
        about="every batch has another length; the budget is half of the peak of the "
        "longest",
    ),
    "trees": Scenario(
        "tree_lstm",
        _trees,
        steps=60,
        share=0.5,
        peers=("checkpoint:2 leaves", "checkpoint:8 leaves", "compile:0.5"),
        about="every batch has a tree of another shape; the budget is half of the "
        "peak of one",
    ),
}


def batches(name: str | None) -> MakeBatch | None:
    """Return what makes the batches of a scenario; None for the model's own."""
    return SCENARIOS[name].make_batch if name else None
