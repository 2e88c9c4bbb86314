"""How evicted values come back: in one planned pass, unseen by the user."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch.cuda.remat import _testing
from torch.utils._python_dispatch import TorchDispatchMode

import models


class _CountingMode(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _chain(x, length):
    values = [x]
    for _ in range(length):
        values.append(values[-1].sin())
    return values


def test_chain_of_10000_ops_is_replayed_without_recursion(remat, device):
    values = _chain(torch.ones(16, device=device), 10_000)
    expected = values[-1].clone()
    _testing.evict_all()
    assert not _testing.is_resident(values[-1])
    remat.reset_stats(device)
    limit = sys.getrecursionlimit()
    found = []
    stack = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.append(values[-1].clone()))
        thread.start()
        thread.join(120)
    finally:
        threading.stack_size(stack)
    assert torch.equal(found[0], expected)
    # ones and 10,000 sines for `clone`, the clone itself for `equal`; `expected` was
    # evicted too and is a clone of the last sine, which is resident by then.
    assert remat.stats(device).replays <= 1 + 10_000 + 2
    assert sys.getrecursionlimit() == limit


def test_long_backward_through_an_evicted_chain(remat, device):
    x = torch.linspace(-1, 1, 16, device=device).requires_grad_()
    values = _chain(x, 2000)
    (expected,) = torch.autograd.grad(values[-1].sum(), x, retain_graph=True)
    _testing.evict_all()
    (found,) = torch.autograd.grad(values[-1].sum(), x)
    assert torch.equal(found, expected)


def test_each_op_of_a_plan_runs_once(remat, device):
    x = torch.randn(64, 64, device=device)
    a = x.sin()
    b, c = a.cos(), a.exp()
    d = b + c
    expected = d.clone()
    for value in (d, c, b, a):
        assert _testing.evict(value)
    remat.reset_stats(device)
    assert torch.equal(d, expected)
    assert remat.stats(device).replays == 4


def test_diamonds_do_not_replay_exponentially(remat, device):
    x = torch.full((64,), 0.25, device=device)
    values = [x.sin()]
    for _ in range(30):
        values.append((values[-1] + values[-1].cos()) * 0.5)
    expected = values[-1].clone()
    for value in values:
        assert _testing.evict(value)
    remat.reset_stats(device)
    assert torch.equal(values[-1], expected)
    assert remat.stats(device).replays <= 1 + 30 * 3


def test_replay_stops_at_what_is_resident(remat, device):
    values = _chain(torch.randn(64, 64, device=device), 6)
    for value in values[4:]:
        assert _testing.evict(value)
    remat.reset_stats(device)
    values[6].sum()
    assert remat.stats(device).replays == 3


def test_view_records_cost_no_memory_in_a_replay(remat, device):
    y = torch.randn(64, 64, device=device).tanh()
    z = y.t().reshape(2, 32, 64)[1].reshape(-1).exp()
    expected = z.clone()
    assert _testing.evict(z)
    assert _testing.evict(y)
    assert torch.equal(z, expected)


def test_replay_is_not_seen_by_a_dispatch_mode(remat, device):
    y = torch.randn(64, 64, device=device).tanh().sin()
    y.sum()
    with _CountingMode() as resident:
        y.sum()
    assert _testing.evict(y)
    with _CountingMode() as evicted:
        y.sum()
    assert evicted.seen == resident.seen


def test_dispatch_mode_sees_the_same_ops_as_without_remat(run_twice, device):
    def step():
        model = models.transformer().to(device)
        x = torch.randn(2, 8, 32, device=device)
        with _CountingMode() as mode:
            model(x).sum().backward()
        return {"seen": mode.seen, **models.state(model)}

    run_twice(step, expect_replays=False)


def test_replay_is_not_seen_by_hooks(remat, device):
    x = torch.randn(16, 64, device=device, requires_grad=True)
    seen = []
    layer = torch.nn.Linear(64, 64).to(device)
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    y = layer(x)
    y.register_hook(lambda g: seen.append("gradient"))
    z = y.exp()
    _testing.evict_all()
    z.sum()
    assert seen == ["forward"]
    _testing.evict_all()
    z.sum().backward()
    assert seen == ["forward", "gradient"]


def test_replay_is_not_seen_by_a_torch_function_mode(remat, device):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[object] = []
    y = torch.randn(64, device=device).tanh().sin()
    assert _testing.evict(y)
    with Mode():
        y + 1
    assert len(seen) == 1


def test_replay_does_not_build_a_graph(remat, device):
    x = torch.randn(64, device=device, requires_grad=True)
    y = x.tanh()
    node = y.grad_fn
    assert _testing.evict(y)
    y.detach().sum()
    assert y.grad_fn is node
    assert y.requires_grad


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.enable_grad])
def test_replay_keeps_the_grad_mode(remat, device, grad_mode):
    y = torch.randn(64, device=device).tanh()
    with grad_mode():
        before = torch.is_grad_enabled()
        _testing.evict(y)
        y.sum()
        assert torch.is_grad_enabled() == before


def test_replay_inside_inference_mode(remat, device):
    y = torch.randn(64, device=device, requires_grad=True).tanh()
    expected = y.detach().clone()
    assert _testing.evict(y)
    with torch.inference_mode():
        assert torch.equal(y + 0, expected)
    y.sum().backward()


def test_default_dtype_of_then_is_used(remat, device):
    ones = torch.ones(64, dtype=torch.long, device=device)
    y = ones / 3
    expected = y.clone()
    assert _testing.evict(y)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(y, expected)
        assert y.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_thread_count_changed_before_a_replay(remat, device):
    x = torch.randn(512, 512, device=device)
    y = x @ x
    expected = y.clone()
    assert _testing.evict(y)
    torch.set_num_threads(2)
    y.sum()
    torch.set_num_threads(1)
    # A matrix product split otherwise may round otherwise; within one thread
    # count it may not.
    torch.testing.assert_close(y, expected)


def test_scalar_arguments_that_are_tensors(remat, device):
    x = torch.randn(64, device=device).tanh()
    scale = torch.tensor(2.0)
    y = x * scale
    expected = y.clone()
    scale.fill_(5.0)
    if _testing.evict(y):
        assert torch.equal(y, expected)
    assert torch.equal(y, expected)


def test_ops_inside_a_profiler_are_captured_alike(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        with torch.profiler.profile(profile_memory=True):
            model(torch.randn(16, 64, device=device)).sum().backward()
        return models.state(model)

    run_twice(step)
