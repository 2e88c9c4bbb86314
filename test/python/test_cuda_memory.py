"""The budget of a GPU: reserved bytes, errors, what is refused."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.cuda.remat as remat
from torch import nn
from torch.cuda.remat import _testing

import models
import runs

pytestmark = runs.needs_gpu

MIB = 1 << 20


def _net(depth: int = 12, width: int = 512) -> nn.Module:
    return models.deep_mlp(depth, width).cuda()


def _train() -> dict[str, object]:
    net = _net(12, 256)
    return models.train(net, lambda: torch.randn(4096, 256, device="cuda"), steps=2)


@pytest.fixture
def plain() -> runs.Outcome:
    """A run without a budget, which is what others are compared with."""
    torch.cuda.reset_peak_memory_stats()
    outcome = runs.execute(_train, "cuda")
    assert outcome.error is None
    return outcome


@pytest.mark.parametrize("policy", remat.policies())
def test_training_keeps_the_budget_and_the_values(plain, policy):
    torch.cuda.empty_cache()
    budget = torch.cuda.memory_reserved() + torch.cuda.max_memory_allocated() * 8 // 10
    remat.enable(budget, device="cuda", policy=policy)
    outcome = runs.execute(_train, "cuda")
    assert not plain.differences(outcome)
    assert outcome.memory.before + outcome.memory.peak <= budget
    assert outcome.stats.evictions > 0
    assert outcome.stats.replays > 0


@pytest.mark.parametrize("tenths", [9, 8, 7, 6, 5])
def test_training_completes_on_a_grid_of_budgets(plain, tenths):
    # Small blocks have to find room in segments of large ones.
    torch.cuda.empty_cache()
    budget = (
        torch.cuda.memory_reserved() + torch.cuda.max_memory_allocated() * tenths // 10
    )
    remat.enable(budget, device="cuda")
    outcome = runs.execute(_train, "cuda")
    assert not plain.differences(outcome)
    assert outcome.memory.before + outcome.memory.peak <= budget


def test_parameters_moved_to_the_gpu_are_leaves():
    remat.enable(device="cuda")
    net = nn.Linear(64, 128).cuda()
    assert _testing.evict_all() == 0
    assert net.weight.is_cuda


def test_reserved_bytes_are_what_is_counted():
    torch.cuda.empty_cache()
    before = remat.memory_allocated("cuda")
    assert before == torch.cuda.memory_reserved()
    x = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    assert remat.memory_allocated("cuda") >= before + 20 * MIB
    del x
    torch.cuda.empty_cache()
    assert remat.memory_allocated("cuda") == before


def test_error_names_the_device_and_what_holds_the_memory():
    kept = torch.randn(10 * MIB, device="cuda")
    torch.cuda.empty_cache()
    remat.enable(torch.cuda.memory_reserved() + 8 * MIB, device="cuda")
    kept.sum()  # an op has read it: a leaf
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    text = str(refused.value)
    assert "remat: out of memory on cuda:0. Tried to allocate 64.00 MiB" in text
    holes = "Largest hole: ", "of neighboring bytes are free or evictable"
    for words in ("the budget is", " leaf ", "evictable", *holes, "Nothing was lost"):
        assert words in text, text
    assert remat.stats("cuda").ooms == 1
    remat.set_budget(None, device="cuda")
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")


def test_largest_hole(empty_gpu):
    """Neighbors count together, free or evictable; what stays ends a hole."""
    remat.enable("256MiB", device="cuda")

    def hole():
        return remat.stats("cuda").largest_hole_bytes

    x = torch.zeros(64, device="cuda")
    values = [x.new_zeros(8 * MIB, dtype=torch.uint8).add(1) for _ in range(4)]
    before = hole()
    assert before >= 16 * MIB  # two share a segment at least
    remat.pin(values[0])
    remat.pin(values[1])
    remat.pin(values[2])
    remat.pin(values[3])
    assert hole() < before
    for value in values:
        remat.unpin(value)
    assert hole() == before
    _testing.evict(values[0])
    assert hole() == before  # a free block is one, too


def test_training_goes_on_after_an_error():
    net = _net(6)
    x = torch.randn(4096, 512, device="cuda")
    expected = net(x[:64]).sum().item()
    torch.cuda.empty_cache()
    remat.enable(torch.cuda.memory_reserved() + 4 * MIB, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        net(torch.cat([x] * 16))
    _testing.check_invariants()
    assert net(x[:64]).sum().item() == expected
    net(x[:64]).sum().backward()


def test_smaller_budget_evicts_at_once():
    remat.enable(device="cuda")
    kept = [torch.full((4 * MIB,), 1.0, device="cuda").tanh() for _ in range(8)]
    budget = torch.cuda.memory_reserved() // 2
    remat.set_budget(budget, device="cuda")
    assert remat.stats("cuda").evicted_bytes > 0
    assert remat.memory_allocated("cuda") <= budget
    assert all(float(t[7]) == float(kept[0][7]) for t in kept)


def test_full_device_evicts_without_a_budget():
    total = torch.cuda.get_device_properties(0).total_memory
    remat.enable(device="cuda")
    size = total // 8
    kept = [torch.full((size // 4,), float(i), device="cuda") + 1 for i in range(10)]
    assert remat.stats("cuda").evictions > 0
    for i in (0, 9):
        assert float(kept[i][5]) == i + 1


def test_memory_stats_and_empty_cache_agree_with_evictions():
    remat.enable(device="cuda")
    y = torch.full((8 * MIB,), 2.0, device="cuda").sqrt()
    active = torch.cuda.memory_stats()["active_bytes.all.current"]
    assert _testing.evict(y)
    assert torch.cuda.memory_stats()["active_bytes.all.current"] <= active - y.nbytes
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved
    assert float(y[3]) == pytest.approx(2**0.5)


def test_percentage_is_of_the_device():
    remat.enable("50%", device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    assert remat.stats("cuda").budget_bytes == total // 2


def _run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, **variables},
    )


# What follows in a process whose allocator is another: the refusal says which ones are
# meant, leaves nothing on, and the CPU is not concerned.
REFUSED = """
import torch
remat = torch.cuda.remat
for device in (None, "cuda", 0):
    try:
        remat.enable("1GiB", device=device)
    except NotImplementedError as error:
        assert "cannot manage cuda:0" in str(error), error
        assert "cudaMallocAsync" in str(error), error
        assert "change_current_allocator" in str(error), error
    else:
        raise AssertionError("not refused")
assert not remat.is_enabled()
remat.enable("1GiB", device="cpu")
x = torch.randn(64, 64).tanh()
assert remat.stats("cpu").ops_captured > 0
"""


def test_async_allocator_is_refused():
    assert_backend = 'assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"'
    done = _run(
        REFUSED + assert_backend, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"
    )
    assert done.returncode == 0, done.stderr


def test_pluggable_allocators_are_refused(tmp_path: pathlib.Path):
    source, library = tmp_path / "own.c", tmp_path / "own.so"
    source.write_text("""
#include <stddef.h>
void* own_malloc(size_t size, int device, void* stream) { return NULL; }
void own_free(void* address, size_t size, int device, void* stream) {}
""")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    done = _run(f"""
import torch
torch.cuda.memory.change_current_allocator(
    torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "own_malloc", "own_free")
)
{REFUSED}
""")
    assert done.returncode == 0, done.stderr


def test_device_that_is_not_there():
    with pytest.raises(ValueError, match="there is no cuda:99"):
        remat.enable(device="cuda:99")


def test_enable_initializes_cuda_and_covers_all_devices():
    done = _run(
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "torch.cuda.remat.enable('64MiB')\n"
        "for d in range(torch.cuda.device_count()):\n"
        "    assert torch.cuda.remat.is_enabled(d)\n"
        "    assert torch.cuda.remat.stats(d).budget_bytes == 64 << 20\n"
        "assert not torch.cuda.remat.is_enabled('cpu')\n"
        "torch.cuda.remat.disable()\n"
        "assert not torch.cuda.remat.is_enabled()\n"
    )
    assert done.returncode == 0, done.stderr


def test_cpu_and_gpu_have_budgets_of_their_own():
    remat.enable("1GiB", device="cuda")
    remat.enable("2GiB", device="cpu", policy="lru")
    assert remat.stats("cuda").budget_bytes == 1 << 30
    assert remat.stats("cpu").budget_bytes == 2 << 30
    assert "policy lru" in remat.summary("cpu")
    x = torch.randn(64, 64).tanh()
    copy = x.cuda()  # a leaf: the copy reads host memory
    y = copy.exp()
    z = y.sum().cpu() + x.sum()
    assert _testing.evict(y)
    assert torch.isfinite(z)
    assert torch.allclose(y.cpu(), x.exp())
    remat.disable("cuda")
    assert not remat.is_enabled("cuda")
    assert remat.is_enabled("cpu")
    with pytest.raises(ValueError, match="off on cuda:0"):
        remat.set_budget("1GiB", device="cuda")


def test_copies_from_the_host_are_leaves_with_a_reason():
    remat.enable(device="cuda")
    batch = torch.randn(256, 64)
    x = batch.cuda()
    y = x.tanh()
    assert not _testing.evict(x)
    assert _testing.evict(y)
    assert torch.equal(y, x.tanh())
    assert remat.stats("cuda").not_replayable["copied from host memory"] >= 1
