"""NCCL between the devices of one process: results, order, what is refused."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import nn
from torch.cuda import nccl
from torch.nn.parallel import comm

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs --devices 2"
)
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)


def _values(dtype: torch.dtype, count: int = 6) -> list[torch.Tensor]:
    """One on each device."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(1, 9, (2, count), generator=generator)
    if dtype.is_floating_point:
        values = values / 7
    return [values[i].to(dtype).to(f"cuda:{i}") for i in (0, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype: torch.dtype) -> None:
    a, b = (value.cpu() for value in _values(dtype))
    expected = [a + b, a * b, torch.maximum(a, b), torch.minimum(a, b)]
    for op, result in enumerate(expected):  # ncclSum, ncclProd, ncclMax, ncclMin
        values = _values(dtype)
        nccl.all_reduce(values, op=op)
        for value in values:
            assert torch.equal(value.cpu(), result)
        values = _values(dtype)
        nccl.reduce(values, values[1], root=1, op=op)
        assert torch.equal(values[1].cpu(), result)
        assert torch.equal(values[0].cpu(), a)


def test_broadcast_gather_and_scatter() -> None:
    a, b = (value.cpu() for value in _values(torch.float32))
    values = _values(torch.float32)
    nccl.broadcast(values, root=0)
    assert torch.equal(values[1].cpu(), a)

    values = _values(torch.float32)
    gathered = [torch.empty(12, device=value.device) for value in values]
    nccl.all_gather(values, gathered)
    for result in gathered:
        assert torch.equal(result.cpu(), torch.cat([a, b]))

    values = _values(torch.float32)
    parts = [torch.empty(3, device=value.device) for value in values]
    nccl.reduce_scatter(values, parts)
    assert torch.equal(torch.cat([part.cpu() for part in parts]), a + b)


def test_streams_that_nothing_orders_are_reported() -> None:
    values = _values(torch.float32)
    torch.cuda.synchronize()
    side = torch.cuda.Stream(0)
    with torch.cuda.stream(side):
        values[0].add_(1)
    with pytest.raises(RuntimeError, match=r"data race: ncclAllReduce on stream"):
        nccl.all_reduce(values)
    torch.cuda.current_stream(0).wait_stream(side)
    nccl.all_reduce(values)
    with (
        torch.cuda.stream(side),
        pytest.raises(RuntimeError, match="that ncclAllReduce on stream"),
    ):
        values[0].add_(1)


def test_a_receiver_waits_for_the_sender() -> None:
    """What came before the collective on the sender's stream is ordered with it."""
    runtime = ctypes.CDLL("libcudart.so.12")
    values = _values(torch.float32)
    other = torch.ones(4, device="cuda:0")
    peer = torch.empty(4, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    other.add_(1)

    def read_on_device_1() -> int:
        with torch.cuda.device(1):
            error = runtime.cudaMemcpyAsync(
                ctypes.c_void_p(peer.data_ptr()),
                ctypes.c_void_p(other.data_ptr()),
                ctypes.c_size_t(other.nbytes),
                ctypes.c_int(4),  # cudaMemcpyDefault
                ctypes.c_void_p(torch.cuda.current_stream(1).cuda_stream),
            )
            runtime.cudaGetLastError()
            return error

    assert read_on_device_1() != 0
    nccl.all_reduce(values)
    assert read_on_device_1() == 0
    assert torch.equal(peer.cpu(), other.cpu())


def test_a_device_that_does_not_call_is_an_error() -> None:
    library = ctypes.CDLL("libnccl.so.2")
    library.ncclGetErrorString.restype = ctypes.c_char_p
    comms = (ctypes.c_void_p * 2)()
    assert library.ncclCommInitAll(comms, 2, None) == 0
    value = torch.ones(4, device="cuda:0")
    address = ctypes.c_void_p(value.data_ptr())
    count = ctypes.c_size_t(4)
    result = library.ncclAllReduce(
        address, address, count, 7, 0, ctypes.c_void_p(comms[0]), None
    )
    text = library.ncclGetErrorString(result).decode()
    assert "ncclAllReduce was called for 1 of 2 devices" in text
    result = library.ncclSend(address, count, 7, 1, ctypes.c_void_p(comms[0]), None)
    assert result != 0
    text = library.ncclGetErrorString(result).decode()
    assert text == "emulated NCCL: ncclSend is not supported"
    for handle in comms:
        assert library.ncclCommDestroy(ctypes.c_void_p(handle)) == 0


def test_coalesced_tensors_of_several_types() -> None:
    tensors = [
        torch.randn(5, device="cuda:0"),
        torch.arange(3, device="cuda:0"),
        torch.randn(2, 3, device="cuda:0", dtype=torch.float16),
    ]
    _, copies = comm.broadcast_coalesced(tensors, [0, 1])
    for tensor, copy in zip(tensors, copies):
        assert copy.device == torch.device("cuda:1")
        assert torch.equal(copy.cpu(), tensor.cpu())


def test_data_parallel_gives_the_gradients_of_one_device() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
    x = torch.randn(10, 8, device="cuda")
    net(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    nn.DataParallel(net)(x).square().sum().backward()
    for parameter, gradient in zip(net.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient)
