"""Random commands against the CUDA allocator, the engine and a model of what must hold.

After each command the values that are read, the bytes that the allocator counts and
the engine's own invariants are compared with what a dictionary of numbers says.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.cuda.remat as remat
from torch.cuda.remat import _testing

import runs

MiB = 1 << 20
BUDGET = 128 * MiB

pytestmark = [runs.needs_gpu, pytest.mark.usefixtures("empty_gpu")]


class Commands:
    """The program: tensors that hold one number each, and that number."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tensors: dict[int, torch.Tensor] = {}
        self.numbers: dict[int, float] = {}
        self.leaves: set[int] = set()
        self.next = 0
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        self.out_of_memory = 0

    def step(self) -> None:
        command = self.random.choices(
            [self.leaf, self.op, self.write, self.drop, self.read]
            + [self.record_stream, self.side_stream, self.evict, self.fail],
            [2, 12, 3, 6, 6, 1, 2, 2, 1],
        )[0]
        try:
            command()
        except torch.OutOfMemoryError:
            self.out_of_memory += 1
            if self.tensors:
                self.drop()

    def add(self, tensor: torch.Tensor, number: float) -> int:
        self.next += 1
        self.tensors[self.next] = tensor
        self.numbers[self.next] = number
        return self.next

    def any(self) -> int | None:
        return self.random.choice(sorted(self.tensors)) if self.tensors else None

    def size(self) -> int:
        # Small pool, large pool, and more than one segment of the default size.
        return self.random.choice([100, 5_000, 300_000, 800_000, 2_000_000, 6_000_000])

    def leaf(self) -> None:
        if len(self.leaves & set(self.tensors)) >= 3:
            return
        number = float(self.random.randrange(1000))
        value = torch.empty(self.random.choice([100, 300_000]), device="cuda")
        key = self.add(value.fill_(number).requires_grad_(), number)
        self.leaves.add(key)

    def op(self) -> None:
        key = self.any()
        if key is None:
            return
        numel = self.size()
        base = self.tensors[key].detach()[:1].expand(numel)
        self.add(base + 1.0, self.numbers[key] + 1.0)

    def write(self) -> None:
        key = self.any()
        if key is not None and key not in self.leaves:
            self.tensors[key].mul_(2.0)
            self.numbers[key] *= 2.0

    def drop(self) -> None:
        key = self.any()
        if key is not None:
            del self.tensors[key], self.numbers[key]

    def read(self) -> None:
        key = self.any()
        if key is not None:
            value = self.tensors[key].detach()
            low, high = value.min().item(), value.max().item()
            assert low == high == self.numbers[key]

    def record_stream(self) -> None:
        key = self.any()
        if key is not None:
            self.tensors[key].record_stream(self.random.choice(self.streams))

    def side_stream(self) -> None:
        key = self.any()
        if key is None:
            return
        side = self.random.choice(self.streams)
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                total = self.tensors[key].detach().double().mean()
                number = total.item()
        finally:
            main.wait_stream(side)
        assert number == self.numbers[key]

    def evict(self) -> None:
        _testing.evict_all()

    def fail(self, times: int = 1) -> None:
        # The device has no memory left, though the budget has.
        library = ctypes.CDLL(None)
        if hasattr(library, "emulatedCudaFailAllocations"):
            library.emulatedCudaFailAllocations(0, self.random.randrange(2), times)

    def check(self) -> None:
        _testing.check_invariants()
        stats = torch.cuda.memory_stats()
        snapshot = torch.cuda.memory_snapshot()
        reserved = sum(segment["total_size"] for segment in snapshot)
        assert stats["reserved_bytes.all.current"] == reserved
        assert stats["reserved_bytes.all.peak"] <= BUDGET
        assert remat.memory_allocated("cuda") == reserved
        for segment in snapshot:
            blocks = segment["blocks"]
            assert sum(block["size"] for block in blocks) == segment["total_size"]
            in_use = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
            assert in_use == segment["allocated_size"]


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_agree_with_the_model(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_REMAT_SMALLEST", "1")
    remat.enable(BUDGET, device="cuda")
    commands = Commands(seed)
    for _ in range(200):
        commands.step()
        commands.check()
    commands.fail(0)  # what was still to fail
    for key in list(commands.tensors):
        assert commands.tensors[key][0].item() == commands.numbers[key]
    stats = remat.stats("cuda")
    assert stats.evictions > 0
    assert stats.replays > 0


@pytest.mark.parametrize(
    "setting", ["expandable_segments:True", "max_split_size_mb:21"]
)
def test_random_commands_with_other_settings(setting: str) -> None:
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting}
    name = "test_random_commands_agree_with_the_model"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"{Path(__file__)}::{name}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
