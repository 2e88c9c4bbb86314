"""Data parallel training on two GPUs, each with a budget, equals that without one."""

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.cuda import remat
from torch.cuda.remat import _testing
from torch.nn.parallel import comm

import models
import runs
import snapshots

pytestmark = runs.needs_two_gpus
DEVICES = ("cuda:0", "cuda:1")
WIDTH, BATCH = 256, 16384  # 8 MiB an activation on each of two devices


def _train(parallel: nn.Module, net: nn.Module) -> dict[str, object]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for _ in range(2):
        loss = parallel(torch.randn(BATCH, WIDTH, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": losses, **models.state(net)}


def _peaks() -> list[int]:
    return [torch.cuda.max_memory_reserved(device) for device in DEVICES]


def _is_equal_in_budgets(step: Callable[[], object], ratio: float) -> None:
    """Budgets: this part of what each device took without."""
    torch.cuda.init()
    gc.collect()
    torch.cuda.empty_cache()
    for device in DEVICES:
        torch.cuda.reset_peak_memory_stats(device)
    plain = runs.execute(step, "cuda")
    assert plain.error is None, plain.error
    budgets = {
        device: int(ratio * peak) >> 21 << 21 for device, peak in zip(DEVICES, _peaks())
    }
    for device, budget in budgets.items():
        remat.enable(budget, device=device)
        remat.reset_stats(device)
        torch.cuda.reset_peak_memory_stats(device)
    try:
        within = runs.execute(step, "cuda")
        for device, budget in budgets.items():
            assert torch.cuda.max_memory_reserved(device) <= budget
            assert remat.stats(device).replays > 0, device
    finally:
        remat.disable()
    lines = plain.differences(within)
    assert not lines, "\n".join(lines)


def test_data_parallel_with_dropout() -> None:
    def step():
        layers = []
        for _ in range(10):
            layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3)]
        net = nn.Sequential(*layers).cuda()
        return _train(nn.DataParallel(net, [0, 1]), net)

    _is_equal_in_budgets(step, 0.6)


def test_data_parallel_with_batch_norm() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)
            self.body = models.deep_mlp(10, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(self.norm(x))

    def step():
        net = Normed().cuda()
        return _train(nn.DataParallel(net), net)

    _is_equal_in_budgets(step, 0.6)


def test_communication_of_evicted_tensors() -> None:
    """What NCCL gets the address of is brought back first."""
    remat.enable(device="cuda")
    x = torch.randn(64, 64, device="cuda:0").tanh()
    y = torch.randn(64, 64, device="cuda:1").tanh()
    expected = (x.cpu(), x.cpu() + y.cpu())
    for tensor in (x, y):
        assert _testing.evict(tensor)
    total = comm.reduce_add([x, y], 0)
    assert torch.equal(total.cpu(), expected[1])
    z = torch.randn(64, 64, device="cuda:0").tanh()
    expected = z.cpu()
    assert _testing.evict(z)
    _, copy = comm.broadcast(z, DEVICES)
    assert torch.equal(copy.cpu(), expected)


@pytest.fixture(params=["gloo", "nccl"])
def process_group(request: pytest.FixtureRequest, tmp_path):
    """A group of this process alone."""
    if request.param == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(
        request.param,
        store=dist.FileStore(str(tmp_path / "store"), 1),
        rank=0,
        world_size=1,
    )
    yield
    dist.destroy_process_group()


def test_distributed_data_parallel_over_two_devices(process_group: None) -> None:
    """A model on two devices, its gradients reduced in buckets."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = models.deep_mlp(6, WIDTH).to("cuda:0")
            self.second = models.deep_mlp(6, WIDTH).to("cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).to("cuda:1")).to("cuda:0")

    def step():
        net = Split()
        return _train(nn.parallel.DistributedDataParallel(net), net)

    _is_equal_in_budgets(step, 0.7)


def _train_as_rank(rank: int, results: pathlib.Path) -> None:
    """What each of two processes does, a GPU each: without remat, then within 70 %."""
    torch.set_num_threads(1)
    torch.cuda.set_device(rank)
    store = dist.FileStore(str(results / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

    def step() -> dict[str, object]:
        torch.manual_seed(rank)
        net = models.deep_mlp(5, WIDTH).cuda()
        return _train(nn.parallel.DistributedDataParallel(net), net)

    plain = step()
    gradients = [g for name, g in plain["gradients"].items() if name == "0.weight"]
    torch.save(gradients, results / f"gradients of {rank}")
    peak = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    remat.enable(int(0.7 * peak))
    within = step()
    assert remat.stats().replays > 0
    assert torch.cuda.max_memory_reserved() <= 0.7 * peak
    remat.disable()
    lines = snapshots.differences(snapshots.snapshot(plain), snapshots.snapshot(within))
    assert not lines, "\n".join(lines)
    dist.destroy_process_group()


def test_distributed_data_parallel_in_two_processes(tmp_path: pathlib.Path) -> None:
    here = pathlib.Path(__file__)
    script = (
        f"import pathlib, sys; sys.path.insert(0, {str(here.parent)!r})\n"
        f"import {here.stem} as tests\n"
        f"tests._train_as_rank(int(sys.argv[1]), pathlib.Path({str(tmp_path)!r}))"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank)], stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
    # Each had data of its own; the gradients are the mean of both.
    first, second = (torch.load(tmp_path / f"gradients of {rank}") for rank in (0, 1))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, second))
