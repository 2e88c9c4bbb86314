"""Cases of timing mode, run all in one process: ``test_timing.py`` starts it.

Run as a script, prints what each case raised as JSON. Compares what the executor counts
with PyTorch's own flop counter and with figures worked out by hand.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

# Of an h100-80gb; see Settings.cpp.
BANDWIDTH = 3350e9
FLOPS_FP16, FLOPS_TF32, FLOPS_FP32 = 989.4e12, 494.7e12, 67e12
KERNEL_NS = 2000

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Make ``function`` one of the cases."""
    CASES[function.__name__] = function
    return function


@dataclass
class Work:
    """What the executor counted."""

    flops: float
    bytes: float
    ns: float


def _total() -> Work:
    executor = ctypes.CDLL(os.environ["EMULATED_CUDA_EXECUTOR"])
    values = [ctypes.c_double() for _ in range(3)]
    executor.emulated_cuda_work(*map(ctypes.byref, values))
    return Work(*(value.value for value in values))


def _work(function: Callable[[], object]) -> Work:
    before = _total()
    function()
    after = _total()
    return Work(
        after.flops - before.flops, after.bytes - before.bytes, after.ns - before.ns
    )


def _counted(function: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def _randn(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False):
    return torch.randn(*sizes, device="cuda", dtype=dtype).requires_grad_(grad)


def _agrees(function: Callable[[], object], factor: float = 1) -> None:
    counted = _counted(function)
    assert counted > 0
    assert _work(function).flops == factor * counted


def _refuses(function: Callable[[], object], match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        function()


# --- arithmetic


@case
def products():
    a, b, c = _randn(3, 5), _randn(5, 7), _randn(3, 7)
    batch, other = _randn(2, 3, 5), _randn(2, 5, 7)
    _agrees(lambda: a @ b)
    _agrees(lambda: torch.addmm(c, a, b))
    _agrees(lambda: batch @ other)
    _agrees(lambda: torch.baddbmm(_randn(2, 3, 7), batch, other))
    _agrees(lambda: batch @ b)
    _agrees(lambda: F.linear(a, b.t(), c[0]))
    assert _work(lambda: a @ b[:, 0]).flops == 2 * 3 * 5
    assert _work(lambda: c.addmm_(a, b)).flops == 2 * 3 * 5 * 7
    assert _work(lambda: torch.mm(a, b, out=c)).flops == 2 * 3 * 5 * 7


@case
def convolutions():
    for make, sizes in (
        (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, (1, 3), groups=2, dilation=2), (2, 4, 9, 8)),
        (nn.Conv2d(6, 6, 3, groups=6), (2, 6, 9, 8)),
        (nn.Conv3d(4, 6, 2), (2, 4, 5, 6, 7)),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (2, 4, 9, 8)),
    ):
        module = make.to("cuda")
        _agrees(lambda m=module, s=sizes: m(_randn(*s)))
    module = nn.Conv2d(4, 6, 3, stride=2).to("cuda")
    for grad in (True, False):  # False: only the weights' gradients
        x = _randn(2, 4, 9, 8, grad=grad)
        _agrees(lambda x=x: module(x).sum().backward())


@case
def convolutions_that_the_flop_counter_gets_wrong_backward():
    module = nn.ConvTranspose2d(4, 6, 2, stride=2).to("cuda")
    x = _randn(2, 4, 9, 8, grad=True)
    once = 2 * (2 * 9 * 8) * (4 * 6 * 2 * 2)
    assert _work(lambda: module(x).sum().backward()).flops == 3 * once
    module = nn.Conv2d(4, 6, 3, groups=2).to("cuda")
    once = 2 * (2 * 7 * 6) * (6 * 2 * 3 * 3)
    assert _work(lambda: module(x).sum().backward()).flops == 3 * once


@case
def attention():
    def qkv(dtype):
        # As many keys as queries, where they are causal.
        return [_randn(2, 4, 16, 32, dtype=dtype, grad=True) for _ in range(3)]

    half = qkv(torch.bfloat16)
    _agrees(lambda: F.scaled_dot_product_attention(*half))
    _agrees(lambda: F.scaled_dot_product_attention(*half).sum().backward())
    _agrees(lambda: F.scaled_dot_product_attention(*half, is_causal=True), 0.5)
    whole = qkv(torch.float32)  # by the memory-efficient kernel
    _agrees(lambda: F.scaled_dot_product_attention(*whole))
    _agrees(lambda: F.scaled_dot_product_attention(*whole).sum().backward())
    longer = _randn(2, 4, 48, 32)
    _agrees(lambda: F.scaled_dot_product_attention(whole[0], longer, longer))
    with sdpa_kernel(SDPBackend.MATH):
        _agrees(lambda: F.scaled_dot_product_attention(*whole))


@case
def recurrent_layers():
    time, batch, inputs, hidden = 5, 3, 8, 16
    layer = nn.LSTM(inputs, hidden, num_layers=2).to("cuda")
    x = _randn(time, batch, inputs, grad=True)
    products = 2 * time * batch * 4 * hidden * ((inputs + hidden) + 2 * hidden)
    forward = _work(lambda: layer(x))
    assert forward.flops == products
    assert forward.ns >= 2 * time * KERNEL_NS  # a step follows the step before
    output, _ = layer(x)
    assert output.shape == (time, batch, hidden)
    assert _work(lambda: output.sum().backward()).flops == 2 * products
    assert x.grad.shape == x.shape
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
    packed_work = _work(lambda: layer(packed))
    assert packed_work.flops == products * (5 + 4 + 2) / (time * batch)
    gru = nn.GRU(inputs, hidden, bidirectional=True, batch_first=True).to("cuda")
    products = 2 * 3 * 7 * 2 * 3 * hidden * (inputs + hidden)
    assert _work(lambda: gru(_randn(3, 7, inputs))).flops == products


@case
def rates_are_those_of_the_number_format():
    n = 4096
    flops = 2 * n**3
    half = _randn(n, n, dtype=torch.float16)
    whole = _randn(n, n)
    assert _work(lambda: half @ half).ns == pytest.approx(flops / FLOPS_FP16 * 1e9)
    assert _work(lambda: whole @ whole).ns == pytest.approx(flops / FLOPS_FP32 * 1e9)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        ns = _work(lambda: whole @ whole).ns
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert ns == pytest.approx(flops / FLOPS_TF32 * 1e9)


# --- bytes


@case
def bytes_are_counted_once_each_way():
    n = 1 << 20
    x, y = _randn(n), _randn(n)
    assert _work(lambda: x + y).bytes == 12 * n
    assert _work(lambda: x * x).bytes == 8 * n
    assert _work(lambda: x.add_(y)).bytes == 12 * n
    assert _work(lambda: x.zero_()).bytes == 4 * n
    assert _work(lambda: torch.add(x, y, out=x)).bytes == 12 * n
    assert _work(lambda: x.sum()).bytes == 4 * n + 4
    assert _work(lambda: x + y[:1]).bytes == 8 * n + 4
    assert _work(lambda: x[:1].expand(n) + y).bytes == 8 * n + 4
    assert _work(lambda: x.half()).bytes == 6 * n
    assert _work(lambda: x.view(2, -1).t()[1:]).bytes == 0


@case
def indexing_moves_what_it_indexes():
    table, ids = _randn(1 << 20, 64), torch.arange(1000, device="cuda")
    rows = 1000 * 64 * 4
    indices = 1000 * 8
    assert _work(lambda: F.embedding(ids, table)).bytes == 2 * rows + indices
    assert _work(lambda: table.index_select(0, ids)).bytes == 2 * rows + indices
    assert _work(lambda: table[ids]).bytes == 2 * rows + indices
    values = _randn(1000, 64)
    # Reads the values, and reads and writes that much.
    scattered = _work(lambda: table.index_add_(0, ids, values))
    assert scattered.bytes == 3 * (rows) + 3 * indices


@case
def small_and_large_kernels():
    x = _randn(1)
    assert _work(lambda: x + 1).ns == KERNEL_NS
    n = 1 << 28
    large = torch.empty(n, device="cuda")
    ns = _work(lambda: large + 1).ns
    assert ns == pytest.approx(8 * n / BANDWIDTH * 1e9)


@case
def copies_from_the_host():
    host = torch.zeros(1 << 22)
    ns = _work(lambda: host.to("cuda")).ns
    assert ns == pytest.approx(host.nbytes / 50e9 * 1e9)


# --- time


@case
def events_read_the_streams_clock():
    start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    half = _randn(4096, 4096, dtype=torch.float16)
    torch.cuda.synchronize()
    start.record()
    for _ in range(10):
        half @ half
    middle.record()
    half @ half
    end.record()
    torch.cuda.synchronize()
    once = 2 * 4096**3 / FLOPS_FP16 * 1e3
    assert start.elapsed_time(middle) == pytest.approx(10 * once, rel=1e-2)
    assert middle.elapsed_time(end) == pytest.approx(once, rel=0.05)


@case
def streams_run_side_by_side():
    side = torch.cuda.Stream()
    half = _randn(8192, 8192, dtype=torch.float16)
    side.wait_stream(torch.cuda.current_stream())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    half @ half  # so that the driver is not asked for memory in what is timed
    with torch.cuda.stream(side):
        half @ half
    torch.cuda.synchronize()
    start.record()
    half @ half
    with torch.cuda.stream(side):
        half @ half
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    torch.cuda.synchronize()
    once = 2 * 8192**3 / FLOPS_FP16 * 1e3
    assert start.elapsed_time(end) == pytest.approx(once, rel=0.05)


@case
def graphs_take_their_time_when_they_are_launched():
    half = _randn(4096, 4096, dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            half @ half
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    once = 2 * 4096**3 / FLOPS_FP16 * 1e3
    assert start.elapsed_time(end) == pytest.approx(6 * once, rel=0.05)


# --- sizes and memory


@case
def results_are_laid_out_as_on_a_gpu():
    conv = nn.Conv2d(4, 6, 3).to("cuda", memory_format=torch.channels_last)
    x = _randn(2, 4, 9, 8).to(memory_format=torch.channels_last).requires_grad_()
    y = conv(x)
    assert y.shape == (2, 6, 7, 6)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    q = _randn(2, 4, 16, 32, dtype=torch.bfloat16)
    heads_last = _randn(2, 16, 4, 32, dtype=torch.bfloat16).transpose(1, 2)
    for query in (q, heads_last):
        out = F.scaled_dot_product_attention(query, q, q)
        assert out.stride() == query.stride()
    view = q.diagonal(dim1=-2, dim2=-1)
    assert view.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    out = torch.empty(0, device="cuda")
    torch.add(x.detach(), x.detach(), out=out)
    assert out.shape == x.shape
    assert out.untyped_storage().nbytes() >= x.nbytes
    assert out.device == torch.device("cuda:0")


@case
def only_addresses_are_allocated():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    large = torch.zeros(60, 1 << 28, device="cuda")  # 60 GiB
    assert torch.cuda.memory_allocated() - before == 60 << 30
    with pytest.raises(torch.OutOfMemoryError):
        large + 1
    del large
    torch.cuda.empty_cache()


@case
def a_default_device_does_not_change_sizes():
    with torch.device("cuda"):
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
        x = torch.randn(4, 8)
        loss = F.cross_entropy(model(x), torch.zeros(4, dtype=torch.long))
        loss.backward()
    assert loss.shape == ()
    assert all(p.grad.device.type == "cuda" for p in model.parameters())


@case
def optimizers_and_clipping():
    for optimizer in (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, 0.1),
        lambda p: torch.optim.AdamW(p, 0.1, fused=True),
        lambda p: torch.optim.Adam(p, 0.1, foreach=False),
    ):
        model = nn.Linear(8, 8).to("cuda")
        steps = optimizer(model.parameters())
        for _ in range(2):
            model(_randn(4, 8)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()


@case
def random_operators_advance_the_generator():
    torch.cuda.manual_seed(7)
    generator = torch.cuda.default_generators[0]
    x = torch.empty(1000, device="cuda")
    for function in (
        lambda: x.normal_(),
        lambda: F.dropout(x, 0.5),
        lambda: torch.bernoulli(x),
        lambda: torch.randperm(10, device="cuda"),
    ):
        before = generator.get_offset()
        function()
        assert generator.get_offset() == before + 4
    own = torch.Generator("cuda").manual_seed(1)
    x.uniform_(generator=own)
    assert own.get_offset() == 4


# --- what it refuses


@case
def values_are_refused():
    no_values = "nothing is computed in timing mode|has no bytes in timing mode"
    x = torch.ones(4, device="cuda")
    target = torch.empty(4).pin_memory()
    for function in (
        lambda: x.sum().item(),
        lambda: bool(x[0] > 0),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.numpy(force=True),
        lambda: target.copy_(x, non_blocking=True),
        lambda: repr(x),
        lambda: torch.nonzero(x),
        lambda: x[x > 0],
        lambda: x.masked_select(x > 0),
        lambda: torch.equal(x, x),
        lambda: torch.allclose(x, x),
        lambda: x.unique(),
        lambda: torch.save(x, io.BytesIO()),
    ):
        _refuses(function, no_values)
    y = torch.ones(4, device="cuda")
    _refuses(lambda: y.index_put_((y > 0,), x), no_values)


@case
def a_gradient_scaler_is_refused():
    model = nn.Linear(4, 4).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(_randn(4, 4)).sum()).backward()
    _refuses(lambda: scaler.step(optimizer), "no bytes in timing mode")


@case
def operators_whose_time_is_not_modelled_are_refused():
    x = _randn(4, 4)
    for function in (
        lambda: torch.linalg.inv(x),
        lambda: torch.linalg.cholesky(x),
        lambda: torch.fft.fft(x),
        lambda: torch.cdist(x, x),
    ):
        _refuses(function, "its time is not modelled")
    assert torch.linalg.vector_norm(x).shape == ()


@case
def mistakes_are_errors_as_ever():
    _refuses(lambda: _randn(2, 3) @ _randn(2, 3), "cannot be multiplied|reduction dim")
    _refuses(lambda: _randn(2, 3) + _randn(4), "must match|broadcast")


def main() -> None:
    """Run all cases and print what went wrong in each."""
    outcomes = {}
    for name, function in CASES.items():
        torch.manual_seed(0)
        try:
            function()
            outcomes[name] = ""
        except BaseException:  # pytest's failures are no Exceptions
            outcomes[name] = traceback.format_exc()
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
