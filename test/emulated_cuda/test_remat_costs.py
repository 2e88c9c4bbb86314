"""What is evicted in the first iteration, before events tell what ops take."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.cuda import remat
from torch.cuda.remat import _testing

from emulated_runtime import emulated

# So that memory is had and given back in pages of 2 MiB.
BUDGET = "2047MiB"

in_first_iteration = emulated(gpu="h100-80gb", timing=1)


def _half(*shape: int) -> torch.Tensor:
    tensor = torch.randn(*shape, device="cuda", dtype=torch.float16)
    remat.pin(tensor)
    return tensor


def _keeps(expensive: Callable[[], torch.Tensor], size: int) -> None:
    """Half of the memory must go: that of sums as large as what is expensive."""
    x = _half(size)
    results = [(expensive(), x + 1) for _ in range(6)]
    assert results[0][0].nbytes == x.nbytes
    # Less than five of them: of each hole only whole pages are given back.
    budget = torch.cuda.memory_reserved() - 9 * x.nbytes // 2
    remat.set_budget(budget)
    kept = [(_testing.is_resident(a), _testing.is_resident(b)) for a, b in results]
    assert all(a for a, _ in kept), kept
    assert sum(not b for _, b in kept) >= 4, kept


@in_first_iteration
def test_products() -> None:
    remat.enable(BUDGET)
    a, b = _half(4096, 4096), _half(4096, 4096)
    bias = _half(4096)
    _keeps(lambda: torch.addmm(bias, a, b), 4096 * 4096)


@in_first_iteration
def test_batched_products() -> None:
    remat.enable(BUDGET)
    a = _half(16, 2048, 2048)
    _keeps(lambda: a @ a, 16 * 2048 * 2048)


@in_first_iteration
def test_convolutions() -> None:
    remat.enable(BUDGET)
    x, weight = _half(32, 256, 64, 64), _half(256, 256, 3, 3)
    _keeps(lambda: F.conv2d(x, weight, padding=1), 32 * 256 * 64 * 64)


@in_first_iteration
def test_attention() -> None:
    remat.enable(BUDGET)
    q = _half(4, 16, 4096, 64)
    _keeps(
        lambda: F.scaled_dot_product_attention(q, q, q),
        4 * 16 * 4096 * 64,
    )


@in_first_iteration
def test_recurrent_layers() -> None:
    remat.enable(BUDGET)
    layer = torch.nn.LSTM(1024, 1024, device="cuda", dtype=torch.float16)
    for parameter in layer.parameters():
        remat.pin(parameter)
    x = _half(256, 64, 1024)
    _keeps(lambda: layer(x)[0], 256 * 64 * 1024)


@in_first_iteration
def test_measurements_replace_estimates() -> None:
    """After some runs an op costs what its events have told."""
    remat.enable(BUDGET)
    x = _half(1 << 24)
    for _ in range(8):
        x + 1
    torch.cuda.synchronize()
    for _ in range(32):
        x + 1
    before = remat.stats().recompute_ns
    y = x + 1
    assert _testing.evict(y)
    y + 1
    measured = remat.stats().recompute_ns - before
    # Twice 32 MiB at an H100's bandwidth.
    assert abs(measured - (2 << 25) / 3350e9 * 1e9) < 1000, measured


@emulated(gpu="h100-80gb", timing=1)
def test_types_of_one_shape_cost_what_they_cost() -> None:
    """Of tensor cores, half precision costs a part of what single precision does."""
    costs = {}
    for dtype in (torch.float32, torch.float16):
        remat.enable()
        a = torch.randn(4096, 4096, device="cuda", dtype=dtype)
        for _ in range(12):
            a @ a
        torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            with remat.record_trace(trace):
                a @ a
            ops = [json.loads(line) for line in trace.read_text().splitlines()]
        costs[dtype] = [op["cost"] for op in ops if op.get("name") == "aten::mm"][-1]
        remat.disable()
    assert costs[torch.float32] > 5 * costs[torch.float16], costs
