"""What all models have in common: data, a loss, an optimizer, and a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

SMALL, CPU, REAL = "small", "cpu", "real"

Batch = tuple[torch.Tensor, ...]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The usual one for convolutional networks."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The usual one for transformers; fused, it makes no copies of all parameters."""
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


@dataclass(frozen=True)
class Workload:
    """A model and how to train it."""

    module: nn.Module
    make_batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    optimizer: Optimizer = adamw
    dtype: torch.dtype | None = None  # of autocast; None: float32 throughout


class Training:
    """One call of :meth:`step` trains on the next batch, and returns its loss."""

    def __init__(self, workload: Workload, device: str) -> None:
        self._workload = workload
        self._device = device
        self._optimizer = workload.optimizer(workload.module.parameters())

    def step(self) -> torch.Tensor:
        workload = self._workload
        with torch.device(self._device):
            batch = workload.make_batch()
            with torch.autocast(
                self._device, workload.dtype, enabled=workload.dtype is not None
            ):
                loss = workload.loss(workload.module, batch)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def token_batch(batch: int, time: int, symbols: int) -> Callable[[], Batch]:
    """Random symbols, and random targets at each place."""

    def make() -> Batch:
        ids = torch.randint(symbols, (batch, time))
        return ids, torch.randint(symbols, (batch, time))

    return make


def image_batch(batch: int, side: int, classes: int) -> Callable[[], Batch]:
    """Random images, and a random class of each."""

    def make() -> Batch:
        return torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))

    return make


def classify(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of one class each."""
    inputs, targets = batch
    return nn.functional.cross_entropy(module(inputs), targets)


def predict_tokens(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy at each place of a sequence."""
    ids, targets = batch
    logits = module(ids)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
