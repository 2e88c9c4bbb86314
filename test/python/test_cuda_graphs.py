"""Captures of CUDA graphs, private pools, and addresses handed out."""

from __future__ import annotations

import pytest
import torch
import torch.cuda.remat as remat
from torch.cuda.remat import _testing

import runs

pytestmark = runs.needs_gpu


@pytest.fixture(autouse=True)
def _on():
    remat.enable(device="cuda")
    yield
    torch.cuda.synchronize()
    _testing.check_invariants()


def _capture(function):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def test_captured_ops_are_leaves_with_a_reason():
    x = torch.ones(64, 64, device="cuda")
    graph, y = _capture(lambda: x * 2 + 1)
    graph.replay()
    assert float(y.sum()) == 3 * 64 * 64
    assert not _testing.evict(y)
    assert remat.stats("cuda").not_replayable["CUDA graph capture"] > 0


def test_evicted_input_of_a_capture_is_a_clear_error():
    y = torch.randn(64, 64, device="cuda").tanh()
    expected = y.cpu()
    assert _testing.evict(y)
    with pytest.raises(RuntimeError, match=r"torch\.cuda\.remat\.pin\(\)"):
        _capture(lambda: y + 1)
    torch.cuda.synchronize()
    assert torch.equal(y.cpu(), expected)
    remat.pin(y)
    graph, z = _capture(lambda: y + 1)
    graph.replay()
    assert torch.equal(z.cpu(), expected + 1)
    remat.unpin(y)


def test_what_a_graph_reads_stays_where_it_is():
    y = torch.randn(64, 64, device="cuda").tanh()
    graph, z = _capture(lambda: y + 1)
    assert not _testing.evict(y)
    assert _testing.evict_all() == 0 or _testing.is_resident(y)
    graph.replay()
    assert torch.equal(z, y + 1)


def test_values_that_a_launch_replaces_are_not_replayed():
    x = torch.ones(64, 64, device="cuda")
    graph, y = _capture(lambda: x * 2)
    graph.replay()
    kept = y + 1  # reads what the next launch replaces
    assert not _testing.evict(kept)
    x.fill_(10)
    graph.replay()
    assert float(kept[0, 0]) == 3
    assert float(y[0, 0]) == 20


def test_static_input_that_a_graph_writes_is_foreign():
    x = torch.zeros(64, 64, device="cuda").exp()
    graph, _ = _capture(lambda: x.add_(1))
    before = x * 3
    assert not _testing.evict(before)
    graph.replay()
    assert float(before[0, 0]) == 3
    assert float(x[0, 0]) == 2


def test_address_handed_out_makes_the_bytes_stay():
    y = torch.randn(64, 64, device="cuda").tanh()
    expected = y.cpu()
    assert _testing.evict(y)
    address = y.data_ptr()
    assert not _testing.evict(y)
    assert y.data_ptr() == address
    assert torch.equal(y.cpu(), expected)


def test_array_interface_and_dlpack_of_evicted_bytes():
    y = torch.randn(64, 64, device="cuda").tanh()
    expected = y.cpu()
    assert _testing.evict(y)
    assert y.__cuda_array_interface__["data"][0] != 0
    assert _testing.is_resident(y)
    z = torch.randn(64, 64, device="cuda").tanh()
    again = z.cpu()
    assert _testing.evict(z)
    assert torch.equal(torch.from_dlpack(z).cpu(), again)
    assert torch.equal(y.cpu(), expected)


@pytest.mark.parametrize(
    "read",
    [
        lambda y: torch.tensor(y.tolist()),
        lambda y: torch.tensor([[v.item() for v in row] for row in y]),
        lambda y: y.cpu(),
        lambda y: y.clone().cpu(),
        lambda y: torch.load(_saved(y), map_location="cpu"),
        lambda y: y.to("cpu", non_blocking=False),
    ],
)
def test_evicted_tensor_reads_right(read):
    y = torch.randn(8, 8, device="cuda").tanh()
    expected = y.cpu()
    assert _testing.evict(y)
    assert torch.equal(read(y), expected)


def _saved(tensor):
    import io

    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file
