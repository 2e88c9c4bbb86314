"""What the executor tells the device: streams, memory, random numbers, graphs."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F

MIB = 1 << 20


def test_a_missing_wait_is_reported_with_both_ops():
    side = torch.cuda.Stream()
    x = torch.ones(8, device="cuda") * 2
    with torch.cuda.stream(side):
        with pytest.raises(RuntimeError, match="aten::add.*reads.*aten::mul.*wrote"):
            x + 1
        side.wait_stream(torch.cuda.default_stream())
        y = x + 1
    torch.cuda.default_stream().wait_stream(side)
    y.record_stream(torch.cuda.default_stream())
    assert y.sum().item() == 24


def test_a_write_under_a_reader_is_reported():
    side = torch.cuda.Stream()
    x = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        y = x + 1
    with pytest.raises(RuntimeError, match="data race"):
        x.zero_()
    torch.cuda.synchronize()
    x.zero_()
    assert y.sum().item() == 16


def test_use_of_a_freed_block_is_reported():
    x = torch.ones(1000, device="cuda")
    # A tensor that does not own its memory, as from a careless extension.
    stale = torch.as_tensor(_Borrowed(x.data_ptr()), device="cuda")
    assert stale.sum().item() == 1000
    del x
    with pytest.raises(RuntimeError, match="aten::add"):
        stale + 1


class _Borrowed:
    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (1000,),
            "typestr": "<f4",
            "data": (address, False),
            "version": 2,
        }


def test_memory_of_a_new_tensor_is_poison_and_legal_to_read():
    assert (torch.empty(1000, dtype=torch.uint8, device="cuda") == 0xFB).all()


def test_a_lack_of_memory_leaves_no_trace():
    runtime = ctypes.CDLL("libcudart.so.12")
    torch.cuda.empty_cache()
    x = torch.ones(4 * MIB, device="cuda")
    running = torch.zeros(64, device="cuda")
    picture = torch.randn(64, 64, 32, 32, device="cuda")
    torch.cuda.empty_cache()
    state = torch.cuda.get_rng_state()
    allocated = torch.cuda.memory_allocated()
    runtime.emulatedCudaFailAllocations(0, 0, 2)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        F.batch_norm(picture, running, running.clone(), training=True)
    assert (running == 0).all()  # a kernel that never ran
    runtime.emulatedCudaFailAllocations(0, 0, 0)
    assert torch.cuda.memory_allocated() == allocated
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert (x + x).sum().item() == 8 * MIB


def _offset() -> int:
    return int.from_bytes(torch.cuda.get_rng_state()[8:].numpy().tobytes(), "little")


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.rand_like(x),
        lambda x: x.clone().normal_(),
        lambda x: torch.randperm(1000, device="cuda"),
        lambda x: torch.multinomial(x, 100),
        lambda x: torch.bernoulli(x / 2),
        lambda x: F.rrelu(-x, training=True),
        lambda x: F.scaled_dot_product_attention(
            *(x[:512].view(1, 2, 16, 16).half(),) * 3, dropout_p=0.5
        ),
    ],
)
def test_an_op_draws_by_seed_and_offset(draw):
    x = torch.ones(1000, device="cuda")
    torch.cuda.manual_seed(5)
    first = draw(x)
    offset = _offset()
    assert offset > 0
    assert offset % 4 == 0
    state = torch.cuda.get_rng_state()
    second = draw(x)
    assert _offset() == 2 * offset
    assert not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(x), second)
    torch.cuda.manual_seed(5)
    assert torch.equal(draw(x), first)
    torch.cuda.manual_seed(6)
    assert not torch.equal(draw(x), first)


def test_a_given_generator_is_the_one_that_moves():
    own = torch.Generator("cuda").manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(100, device="cuda", generator=own)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    own.manual_seed(5)
    assert torch.equal(torch.rand(100, device="cuda", generator=own), first)


def test_the_host_generator_does_not_move():
    state = torch.get_rng_state()
    F.dropout(torch.ones(100, device="cuda"), 0.5)
    torch.randn(100, device="cuda")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_graph_runs_again_on_new_values_and_new_numbers():
    x = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = x * 2
        dropped = F.dropout(doubled, 0.5)
    x.fill_(3)
    graph.replay()
    assert (doubled == 6).all()
    first = dropped.clone()
    assert set(first.tolist()) == {0.0, 12.0}
    graph.replay()
    assert not torch.equal(dropped, first)


def test_a_graph_cannot_hold_what_the_host_waits_for():
    x = torch.ones(8, device="cuda")
    with (
        pytest.raises(RuntimeError, match="captur"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        x.nonzero()
    torch.cuda.synchronize()
    assert (x + 1).sum().item() == 16
