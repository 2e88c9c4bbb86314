"""One training in a process of its own, stepped over its pipes.

Reads a line of JSON that says what to train, then answers each command with one line:

``step``      trains once: seconds, bytes, the loss
``counted``   counts of our runtime, for ``remat`` methods, since the last ``counted``
``records``   trains once, and says what lives outside PyTorch's allocator after the
              forward pass, and how many storages and op records the runtime has then

An exception is the last answer, as ``{"error": ...}``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import torch
import torch.cuda.remat as remat

from . import scenarios
from .methods import Method
from .training import PeerTraining

COMMANDS = ("step", "counted", "records")


class Worker:
    """Carries out the commands of one line each."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Start the training.

        ``order`` has ``model``, ``size``, ``device``, ``method`` and, for a ``remat``
        method, ``budget_bytes``; ``scenario`` is optional.
        """
        torch.set_num_threads(1)
        self._device = order["device"]
        method = Method.parse(order["method"])
        self._is_ours = method.family == "remat"
        if self._is_ours:
            budget = order["budget_bytes"]
            limit = float("inf") if budget is None else budget
            remat.enable(limit, device=self._device, policy=method.policy)
        self._training = PeerTraining(
            order["model"],
            order["size"],
            self._device,
            method,
            batch=scenarios.batches(order.get("scenario")),
        )

    def ready(self) -> dict[str, Any]:
        return {
            "labels": self._training.labels,
            "allocated_bytes": remat.memory_allocated(self._device),
        }

    def step(self) -> dict[str, Any]:
        before = remat.memory_allocated(self._device)
        remat.reset_peak_memory_stats(self._device)
        step = self._training.step()
        self._wait_for_plan()
        return {
            **dataclasses.asdict(step.reading),
            "loss": step.loss,
            "allocated_before_bytes": before,
            "allocated_peak_bytes": remat.max_memory_allocated(self._device),
        }

    def _wait_for_plan(self) -> None:
        """In timing mode a step takes longer here than on the device, or shorter: how
        many a search takes would be chance."""
        while self._is_ours and self._device == "cuda":
            if not remat.stats(self._device).plan_search:
                break
            time.sleep(0.02)

    def counted(self) -> dict[str, Any]:
        if not self._is_ours:
            return {}
        stats = remat.stats(self._device)
        remat.reset_stats(self._device)
        names = (
            "ops_captured",
            "evictions",
            "replays",
            "recompute_ns",
            "overhead_ns",
            "max_replay_depth",
        )
        return {name: getattr(stats, name) for name in names}

    def records(self) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def look() -> None:
            stats = remat.stats(self._device)
            live = self._training.counter.live_bytes()
            found["unmanaged_bytes"] = live - remat.memory_allocated(self._device)
            found["storages"] = stats.storages
            found["op_records"] = stats.op_records

        self._training.step(look)
        return found


def main() -> None:
    """Answer until the input ends."""
    # Whatever else prints does not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=answers, flush=True)

    try:
        worker = Worker(json.loads(sys.stdin.readline()))
        answer(worker.ready())
        for line in sys.stdin:
            command = line.strip()
            if command not in COMMANDS:
                raise ValueError(f"no command {command!r}")
            answer(getattr(worker, command)())
    except Exception as error:
        kind = type(error).__name__
        answer({"error": f"{kind}: {' '.join(str(error).split())[:300]}"})


if __name__ == "__main__":
    main()
