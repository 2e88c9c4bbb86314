"""The budget of a CUDA device, as its caching allocator keeps it."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.cuda.remat as remat
from torch import nn

import runs

MiB = 1 << 20

pytestmark = [runs.needs_gpu, pytest.mark.usefixtures("empty_gpu")]


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _chain(length: int, numel: int) -> torch.Tensor:
    """Saves ``length`` activations of ``numel`` floats for backward."""
    value = torch.ones(numel, device="cuda", requires_grad=True)
    result = value
    for _ in range(length):
        result = (result * 1.0001).sin()
    result.sum().backward()
    return value.grad


def test_reserved_bytes_stay_within_the_budget() -> None:
    expected = _chain(30, 2 * MiB)
    peak = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    budget = peak // 2
    remat.enable(budget, device="cuda")
    got = _chain(30, 2 * MiB)
    stats = remat.stats("cuda")
    assert torch.cuda.max_memory_reserved() <= budget
    assert stats.evictions > 0
    assert stats.replays > 0
    assert torch.equal(expected, got)


def test_a_request_above_the_budget_is_out_of_memory_and_loses_nothing() -> None:
    remat.enable(64 * MiB, device="cuda")
    kept = torch.arange(MiB, device="cuda")
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(100 * MiB, dtype=torch.uint8, device="cuda")
    text = str(caught.value)
    assert "CUDA out of memory" in text
    assert "remat: out of memory on cuda:0" in text
    assert "budget is 64.00 MiB" in text
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    assert torch.equal(kept.cpu(), torch.arange(MiB))
    assert torch.ones(MiB, device="cuda").sum().item() == MiB


def test_leaves_and_evictable_bytes_lie_in_different_segments() -> None:
    remat.enable(512 * MiB, device="cuda")
    leaf = torch.empty(4 * MiB, device="cuda", requires_grad=True)
    saved = leaf.sin()
    segments = {segment["address"]: segment for segment in torch.cuda.memory_snapshot()}

    def pool_of(tensor: torch.Tensor) -> tuple[int, int]:
        address = tensor.untyped_storage()._cdata and tensor.data_ptr()
        for start, segment in segments.items():
            if start <= address < start + segment["total_size"]:
                return tuple(segment["segment_pool_id"])
        raise AssertionError("in no segment")

    assert pool_of(leaf) == (0, 0)
    assert pool_of(saved) != (0, 0)


def test_off_places_everything_as_upstream_does() -> None:
    code = """
        import torch
        value = torch.empty(4 << 20, device="cuda", requires_grad=True).sin()
        print({tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()})
    """
    assert _run(code) == "{(0, 0)}"


def test_with_windows_off_it_is_placed_as_upstream_does_and_evicted_singly() -> None:
    code = """
        import torch
        import torch.cuda.remat as remat
        remat.enable(9 * (16 << 20), device="cuda")
        leaf = torch.ones(4 << 20, device="cuda", requires_grad=True)
        saved = [leaf * float(i) for i in range(8)]
        for value in saved[1::2]:
            value.sum()
        large = torch.cat([leaf.detach()] * 3)
        print({tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()},
              remat.stats("cuda").evictions)
    """
    assert _run(code, PYTORCH_REMAT_WINDOWS="0") == "{(0, 0)} 3"


def test_neighbors_are_evicted_for_a_larger_request() -> None:
    # Nine blocks fill the budget. Every other one was read lately, so that by score
    # alone five would go until three neighbors are free.
    remat.enable(9 * 16 * MiB, device="cuda")
    leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
    saved = [leaf * float(i) for i in range(8)]
    for value in saved[1::2]:
        value.sum()
    remat.reset_stats("cuda")
    large = torch.cat([leaf.detach()] * 3)
    assert remat.stats("cuda").evictions == 3
    assert large.sum().item() == 12 * MiB
    for i, value in enumerate(saved):
        assert value[0].item() == float(i)


def _products_with_holes(stream: torch.cuda.Stream) -> dict[int, torch.Tensor]:
    """Fills the budget with products of 4 MiB and drops every other one."""
    remat.enable(torch.cuda.memory_reserved() + 8 * 4 * MiB, device="cuda")
    with torch.cuda.stream(stream):
        base = torch.full((1024, 1024), 2**-10, device="cuda", requires_grad=True)
        products = {i: torch.addmm(base, base, base, beta=i) for i in range(7)}
        for i in range(0, 7, 2):
            del products[i]
    remat.reset_stats("cuda")
    return products


def test_what_is_dear_to_make_again_is_moved_out_of_the_way() -> None:
    stream = torch.cuda.current_stream()
    expected = {i: value.cpu() for i, value in _products_with_holes(stream).items()}
    remat.disable()
    gc.collect()
    torch.cuda.empty_cache()
    products = _products_with_holes(stream)
    large = torch.zeros(2, 1024, 1024, device="cuda")
    stats = remat.stats("cuda")
    assert (stats.moves, stats.moved_bytes, stats.evictions) == (1, 4 * MiB, 0)
    large.fill_(1)  # where the moved one lay
    for i, value in products.items():
        assert torch.equal(value.cpu(), expected[i]), i
    assert remat.stats("cuda").replays == 0


def test_bytes_that_other_streams_use_are_moved_in_their_order() -> None:
    # The emulated device reports a copy that overtakes a kernel.
    side = torch.cuda.Stream()
    products = _products_with_holes(side)
    total = torch.zeros((), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    for value in products.values():
        total += value.sum()  # read on this stream, allocated on the other
    with torch.cuda.stream(side):
        large = torch.zeros(2, 1024, 1024, device="cuda")
    assert remat.stats("cuda").moves == 1
    again = torch.zeros((), device="cuda")
    for value in products.values():
        again += value.sum()  # orders nothing itself
    assert torch.equal(total, again)
    del large


Operands = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def operands() -> Operands:
    """Of products whose making takes far longer than copying them."""
    torch.manual_seed(0)
    shapes = ((1024, 4096), (4096, 1024))
    return tuple(torch.rand(shape, device="cuda") for shape in shapes)


def _products_between_gaps(operands: Operands) -> list[torch.Tensor]:
    """Fills the budget with products of 4 MiB and gaps of 1.5 MiB between them."""
    a, b = operands
    remat.enable(torch.cuda.memory_reserved() + 28 * MiB, device="cuda")
    products, spacers = [], []
    for i in range(5):
        products.append(torch.addmm(b[:1024], a, b, beta=i))
        spacers.append(a[:96] * 2.0)
    del spacers
    remat.reset_stats("cuda")
    return products


def test_blocks_slide_until_the_gaps_lie_together(operands: Operands) -> None:
    a, b = operands
    expected = [torch.addmm(b[:1024], a, b, beta=i).cpu() for i in range(5)]
    torch.cuda.empty_cache()
    products = _products_between_gaps(operands)
    torch.cuda.memory._record_memory_history()
    large = torch.zeros(1088, 1024, device="cuda")  # three gaps
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    stats = remat.stats("cuda")
    assert (stats.moves, stats.moved_bytes, stats.evictions) == (2, 8 * MiB, 0)
    actions = [entry["action"] for entry in history if entry["size"] == 4 * MiB]
    assert actions == ["alloc", "free_requested", "free_completed"] * 2
    large.fill_(1)
    for value, plain in zip(products, expected, strict=True):
        assert torch.equal(value.cpu(), plain)
    before = torch.cuda.memory_allocated()
    del value, products  # the allocator finds each where it is now
    assert torch.cuda.memory_allocated() == before - 5 * 4 * MiB


def test_what_the_program_knows_the_address_of_stays(operands: Operands) -> None:
    products = _products_between_gaps(operands)
    addresses = [products[i].data_ptr() for i in (1, 3)]
    expected = [products[i].cpu() for i in (1, 3)]
    large = torch.zeros(1088, 1024, device="cuda")
    stats = remat.stats("cuda")
    assert stats.moves + stats.evictions > 0
    assert [products[i].data_ptr() for i in (1, 3)] == addresses
    for i, plain in zip((1, 3), expected, strict=True):
        assert torch.equal(products[i].cpu(), plain)
    del large


def test_bytes_that_other_streams_use_slide_in_their_order(operands: Operands) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        products = _products_between_gaps(operands)
    torch.cuda.current_stream().wait_stream(side)
    total = torch.zeros((), device="cuda")
    for value in products:
        total += value.sum()  # read on this stream, allocated on the other
    with torch.cuda.stream(side):
        large = torch.zeros(1088, 1024, device="cuda")
    assert remat.stats("cuda").moves == 2
    again = torch.zeros((), device="cuda")
    for value in products:
        again += value.sum()  # orders nothing itself
    assert torch.equal(total, again)
    del large


def test_gradients_slide() -> None:
    torch.manual_seed(0)
    weight, row, given = (torch.rand(MiB, device="cuda") for _ in range(3))
    weight.requires_grad_()
    remat.enable(torch.cuda.memory_reserved() + 24 * MiB, device="cuda")
    gradients, spacers = [], []
    for _ in range(3):
        product = weight * row  # leaves a gap before the gradient
        gradients += torch.autograd.grad(product, weight, given)
        del product
        spacers.append(row[: 3 * MiB // 4] * 2.0)
    del spacers
    remat.reset_stats("cuda")
    large = torch.zeros(33 * MiB // 16, device="cuda")  # three gaps
    stats = remat.stats("cuda")
    assert (stats.moves, stats.evictions) == (2, 0)
    large.fill_(1)
    expected = row.cpu() * given.cpu()
    for gradient in gradients:
        assert torch.equal(gradient.cpu(), expected)


@pytest.mark.parametrize("gradient", [4 * MiB, MiB // 2], ids=["large", "small"])
def test_leaves_make_way_where_nothing_can_be_evicted(gradient: int) -> None:
    torch.manual_seed(0)
    # In one segment of 20 MiB, in which 12 are free.
    weight, given = (torch.rand(MiB, device="cuda") for _ in range(2))
    weight.requires_grad_()
    remat.enable(torch.cuda.memory_reserved() + 24 * MiB, device="cuda")
    gradients = []
    for i in range(12 * MiB // gradient):  # lie among evictable bytes
        part = torch.narrow(weight.detach(), 0, 0, gradient // 4).requires_grad_()
        gradients += torch.autograd.grad(part * i, part, given[: gradient // 4])
    remat.reset_stats("cuda")
    large = torch.zeros(4 * MiB + MiB // 2, device="cuda")
    stats = remat.stats("cuda")
    assert (stats.evictions, stats.ooms) == (0, 0)
    assert 0 < stats.moved_bytes <= 12 * MiB
    large.fill_(1)
    for i, value in enumerate(gradients):
        assert torch.equal(value.cpu(), given[: gradient // 4].cpu() * i)
    before = torch.cuda.memory_allocated()
    del value, gradients
    assert torch.cuda.memory_allocated() == before - 12 * MiB


def test_a_step_that_repeats_asks_nothing_of_the_driver() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        *[m for _ in range(12) for m in (nn.Linear(512, 512), nn.GELU())]
    ).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batch = torch.randn(4096, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    step()
    peak = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    remat.enable(int(peak * 0.6), device="cuda")
    for _ in range(3):
        step()
    before = torch.cuda.memory_stats()
    evictions = remat.stats("cuda").evictions
    for _ in range(3):
        step()
    after = torch.cuda.memory_stats()
    assert remat.stats("cuda").evictions > evictions
    for call in ("num_device_alloc", "num_device_free"):
        assert after[call] == before[call]


@pytest.mark.parametrize(("budget", "page"), [(1, 2), (4, 8), (64, 20)])
def test_pages_are_a_share_of_the_budget(budget: int, page: int) -> None:
    code = f"""
        import torch
        import torch.cuda.remat as remat
        leaf = torch.ones(1 << 20, device="cuda", requires_grad=True)
        before = torch.cuda.memory_reserved()
        remat.enable({budget} << 30, device="cuda")
        result = leaf * 2.0
        print((torch.cuda.memory_reserved() - before) >> 20)
    """
    assert _run(code) == str(-(-4 // page) * page)


def test_no_more_pages_are_given_back_than_needed() -> None:
    remat.enable(420 * MiB, device="cuda")
    leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
    saved = [leaf * float(i) for i in range(24)]  # 384 MiB, 16 of them beside
    del saved
    gc.collect()
    assert torch.cuda.memory_reserved() >= 400 * MiB
    other = torch.ones(10 * MiB).cuda()
    assert 400 * MiB <= torch.cuda.memory_reserved() <= 420 * MiB
    assert other[0].item() == 1.0


def test_pages_fill_the_holes_that_other_pools_have_left() -> None:
    remat.enable(200 * MiB, device="cuda")
    leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
    parameter = torch.ones(256, device="cuda", requires_grad=True)

    def pieces() -> int:
        return sum(
            segment["segment_type"] == "large"
            and tuple(segment["segment_pool_id"]) == (0, 2**64 - 1)
            for segment in torch.cuda.memory_snapshot()
        )

    def step() -> None:
        values = [leaf * float(i) for i in range(20)]
        assert values[0][0].item() == 0.0
        with torch.no_grad():
            parameter.add_(1)

    values = [leaf * float(i) for i in range(10)]
    del values[4:7]
    gc.collect()
    others = torch.ones(10 * MiB).cuda()
    assert pieces() == 2
    del values
    for _ in range(4):
        step()
    before = torch.cuda.memory_stats()["num_device_alloc"]
    assert pieces() == 1
    step()
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
    assert torch.cuda.memory_reserved() <= 200 * MiB
    assert others[0].item() == 1.0


def test_a_smaller_budget_takes_effect_at_once() -> None:
    remat.enable(400 * MiB, device="cuda")
    leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
    saved = [leaf * float(i) for i in range(12)]
    remat.set_budget(120 * MiB, device="cuda")
    assert torch.cuda.memory_reserved() <= 120 * MiB
    assert [value[0].item() for value in saved] == [float(i) for i in range(12)]


def test_counters_are_those_of_the_blocks_that_are_there() -> None:
    # No segment of small blocks fits beside the one of large blocks, so that they
    # lie in that. With a largest size to split, that is not made of pages.
    code = """
        import gc
        import torch
        import torch.cuda.remat as remat
        MiB = 1 << 20
        remat.enable(20 * MiB, device="cuda")
        leaf = torch.ones(MiB, device="cuda", requires_grad=True)
        small = [leaf[: MiB // 8] * float(i) for i in range(12)]
        stats = torch.cuda.memory_stats()
        snapshot = torch.cuda.memory_snapshot()
        for pool, kinds in [("all", "small large"), ("small_pool", "small"),
                            ("large_pool", "large")]:
            segments = [s for s in snapshot if s["segment_type"] in kinds]
            reserved = sum(s["total_size"] for s in segments)
            allocated = sum(s["allocated_size"] for s in segments)
            assert stats[f"reserved_bytes.{pool}.current"] == reserved
            assert stats[f"allocated_bytes.{pool}.current"] == allocated, pool
        used_large = [s for s in snapshot if s["segment_type"] == "large"]
        sizes = {b["size"] for s in used_large for b in s["blocks"]
                 if b["state"] == "active_allocated"}
        print(MiB // 2 in sizes)
        del small, leaf
        gc.collect()
        remat.disable()
        torch.cuda.empty_cache()
        stats = torch.cuda.memory_stats()
        assert all(stats[f"{kind}_bytes.{pool}.current"] == 0
                   for kind in ("allocated", "reserved", "active", "inactive_split")
                   for pool in ("all", "small_pool", "large_pool"))
    """
    setting = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:100"}
    assert _run(code, **setting) == "True"


def test_memory_that_another_stream_uses_is_evicted_after_that() -> None:
    remat.enable(100 * MiB, device="cuda")
    leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    saved = []
    for i in range(8):
        value = leaf * float(i)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total = value.sum()
        torch.cuda.current_stream().wait_stream(side)
        saved.append((value, total))
    assert torch.cuda.max_memory_reserved() <= 100 * MiB
    for i, (value, total) in enumerate(saved):
        assert total.item() == 4 * MiB * i
        assert value[-1].item() == float(i)


def test_training_with_momentum_within_half_of_its_memory() -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [nn.Linear(256, 256) for _ in range(6)]
        net = nn.Sequential(*(m for layer in layers for m in (layer, nn.GELU())))
        net.cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for step in range(3):
            batch = torch.full((8192, 256), 0.01 * step, device="cuda")
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in net.parameters()]

    expected = [p.cpu() for p in train()]
    peak = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    remat.enable(peak // 2, device="cuda")
    got = train()
    assert torch.cuda.max_memory_reserved() <= peak // 2
    assert remat.stats("cuda").replays > 0
    remat.set_budget(None, device="cuda")
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b.cpu())


def test_a_request_above_the_budget_evicts_nothing() -> None:
    remat.enable(64 * MiB, device="cuda")
    leaf = torch.ones(MiB, device="cuda", requires_grad=True)
    saved = [leaf * float(i) for i in range(4)]
    remat.reset_stats("cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(100 * MiB, dtype=torch.uint8, device="cuda")
    assert remat.stats("cuda").evictions == 0
    del saved


def test_a_full_device_is_relieved_without_a_budget() -> None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "emulatedCudaFailAllocations"):
        pytest.skip("allocations of a real device do not fail on demand")
    remat.enable(device="cuda")
    leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
    saved = [leaf * float(i) for i in range(4)]
    remat.reset_stats("cuda")
    ooms = torch.cuda.memory_stats()["num_ooms"]
    library.emulatedCudaFailAllocations(0, 0, 100)
    try:
        more = leaf.detach() + 1.0
    finally:
        library.emulatedCudaFailAllocations(0, 0, 0)
    assert remat.stats("cuda").evictions > 0
    assert torch.cuda.memory_stats()["num_ooms"] == ooms
    assert more[0].item() == 2.0
    assert [value[0].item() for value in saved] == [float(i) for i in range(4)]


def test_expandable_segments_grow_up_to_the_budget() -> None:
    # 12 times 16 MiB are ten pages of 20 MiB; an eleventh does not fit.
    code = """
        import torch
        import torch.cuda.remat as remat
        remat.enable(210 << 20, device="cuda")
        leaf = torch.ones(256, device="cuda", requires_grad=True)
        row = leaf.expand(1 << 14, 256)
        saved = [row * float(i) for i in range(12)]
        print(remat.stats("cuda").evictions)
    """
    assert _run(code, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == "0"


def test_an_uncached_allocator_is_refused() -> None:
    code = """
        import torch
        import torch.cuda.remat as remat
        try:
            remat.enable(1 << 30, device="cuda")
        except Exception as error:
            print("caching allocator" in str(error))
    """
    assert _run(code, PYTORCH_NO_CUDA_MEMORY_CACHING="1") == "True"


def test_a_share_of_the_device_is_a_limit_without_a_budget() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(128 * MiB / total)
    try:
        remat.enable(device="cuda")
        leaf = torch.ones(4 * MiB, device="cuda", requires_grad=True)
        saved = [leaf * float(i) for i in range(12)]
        assert torch.cuda.max_memory_reserved() <= 128 * MiB
        assert remat.stats("cuda").evictions > 0
        assert [value[0].item() for value in saved] == [float(i) for i in range(12)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
