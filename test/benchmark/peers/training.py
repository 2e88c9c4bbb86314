"""Trains one model by one method, step by step, and measures each step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import models
from models import Workload

from .counters import DeviceCounter, HeapCounter, Reading
from .methods import Method
from .segments import Forward, cuts, labels_to_try

SEED = 7
# What selective checkpointing keeps: products, convolutions and attention.
KEPT = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


@dataclass(frozen=True)
class Step:
    """One step that was measured; ``loss`` is None where nothing is computed."""

    reading: Reading
    loss: str | None  # hexadecimal, so that equal means equal bits


class PeerTraining:
    """A training that can be stepped.

    On the CPU gradients stay allocated from step to step, as in the published figures:
    what a step needs beyond what is held before it is what a method can change. On a
    GPU they are freed, which is the default of ``zero_grad``, and a step needs them.
    """

    def __init__(
        self,
        model: str,
        size: str,
        device: str,
        method: Method,
        *,
        batch: Callable[[Workload, int], tuple[torch.Tensor, ...]] | None = None,
    ) -> None:
        """Build the model and apply ``method``, all but a budget of ours.

        Args:
            batch: makes the batch of a step from its number; default: the model's own.
        """
        torch.manual_seed(SEED)
        self.counter = HeapCounter() if device == "cpu" else DeviceCounter()
        self._device = device
        self._workload = models.build(model, size, device)
        self._batch = batch or (lambda workload, number: workload.make_batch())
        self._number = 0
        module = self._workload.module
        self._optimizer = self._workload.optimizer(module.parameters())
        self.labels = labels_to_try(cuts(model, module))
        self._loss = functools.partial(self._workload.loss, module)
        if method.family in ("checkpoint", "selective", "compile_checkpoint"):
            cut = cuts(model, module)[method.setting]
            cut(_selective if method.family == "selective" else _checkpointed)
        if method.family.startswith("compile"):
            self._compile(method)
        self._keeps_gradients = device == "cpu"
        if self._keeps_gradients:
            for parameter in module.parameters():
                parameter.grad = torch.zeros_like(parameter)

    def step(self, after_forward: Callable[[], None] = lambda: None) -> Step:
        """Train on the next batch. Raises what the method raises."""
        # The same numbers for every method, whatever it did to the generator before.
        torch.manual_seed(SEED + self._number)
        with torch.device(self._device):
            batch = self._batch(self._workload, self._number)
        self._number += 1
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)
        self.counter.begin()
        dtype = self._workload.dtype
        with torch.device(self._device):
            with torch.autocast(self._device, dtype, enabled=dtype is not None):
                loss = self._loss(batch)
        after_forward()
        loss.backward()
        loss = loss.detach()
        self._optimizer.step()
        reading = self.counter.end()
        return Step(reading, loss.item().hex() if self._device == "cpu" else None)

    def _compile(self, method: Method) -> None:
        if method.family == "compile":
            # The same as torch._functorch.config, whose import takes a while.
            torch._functorch.config.activation_memory_budget = float(method.setting)
        self._loss = torch.compile(self._loss)


def _checkpointed(forward: Forward) -> Forward:
    return functools.partial(checkpoint, forward, use_reentrant=False)


def _selective(forward: Forward) -> Forward:
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep)
    return functools.partial(
        checkpoint, forward, use_reentrant=False, context_fn=contexts
    )


def _keep(
    context: object, op: torch._ops.OpOverload, *args: object, **kwargs: object
) -> CheckpointPolicy:
    if op._opname in KEPT:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
