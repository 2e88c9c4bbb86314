"""Errors inside ops, hooks, backward and replays leave everything usable."""

from __future__ import annotations

import pytest
import torch
from torch.cuda.remat import _testing

import models


def _usable(remat, device):
    _testing.check_invariants()
    y = torch.randn(16, 64, device=device).tanh()
    expected = y.clone()
    assert _testing.evict(y)
    assert torch.equal(y, expected)
    assert remat.stats(device).pinned_bytes == 0


def test_shape_mismatch_inside_an_op(remat, device):
    x = torch.randn(16, 64, device=device).tanh()
    expected = x.clone()
    assert _testing.evict(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        x @ x
    assert _testing.evict(x)
    assert torch.equal(x, expected)
    _usable(remat, device)


@pytest.mark.parametrize(
    "bad",
    [
        lambda x: x[100],
        lambda x: x.view(3, 5),
        lambda x: torch.cat([x, x[:, :3]]),
        lambda x: torch.linalg.cholesky(-torch.eye(4) * x[0, 0].abs()),
        lambda x: x.index_select(0, torch.tensor([99])),
        lambda x: torch.nn.functional.embedding(torch.tensor([99]), x),
        lambda x: torch.stack([]),
        lambda x: x.add_(torch.ones(3)),
        lambda x: torch.zeros(1 << 60),
        lambda x: x.new_empty(-1),
        lambda x: torch._foreach_add_([x, x], [torch.ones(3), torch.ones(7)]),
    ],
)
def test_same_error_as_without(run_twice, device, bad):
    def step():
        x = torch.randn(16, 64, device=device).tanh()
        y = x.sin()
        caught = None
        try:
            bad(x)
        except Exception as error:
            caught = f"{type(error).__name__} {error}"
        assert caught is not None
        return {"x": x, "y": y, "caught": caught}

    run_twice(step)


def test_failed_write_leaves_the_old_value(remat, device):
    x = torch.randn(16, 64, device=device).tanh()
    expected = x.clone()
    with pytest.raises(RuntimeError):
        x.add_(torch.ones(3, device=device))
    # It may have been written in part, so it is a leaf now.
    assert not _testing.evict(x)
    assert torch.equal(x, expected)


def test_exception_in_a_gradient_hook(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        x = torch.randn(16, 64, device=device)
        h = model[:4](x)
        armed = [True]

        def hook(grad):
            if armed[0]:
                armed[0] = False
                raise KeyError("hook")
            return grad

        h.register_hook(hook)
        loss = model[4:](h).square().mean()
        with pytest.raises(KeyError, match="hook"):
            loss.backward(retain_graph=True)
        model.zero_grad()
        loss.backward()
        return models.state(model)

    run_twice(step)


def test_exception_in_a_module_hook_and_next_step_is_exact(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        handle = model[3].register_forward_pre_hook(lambda m, i: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(torch.randn(16, 64, device=device))
        handle.remove()
        return models.train(model, lambda: torch.randn(16, 64, device=device))

    run_twice(step)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.saved_tensors
        raise ValueError("backward")


def test_exception_in_a_custom_backward(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        x = torch.randn(16, 64, device=device)
        with pytest.raises(ValueError, match="backward"):
            _Fails.apply(model(x)).sum().backward()
        model.zero_grad()
        model(x).sum().backward()
        return models.state(model)

    run_twice(step)


@pytest.fixture
def library():
    with torch.library._scoped_library("remat_tests", "FRAGMENT") as scoped:
        yield scoped


def test_exception_in_a_custom_op(remat, device, library):
    library.define("fails(Tensor x) -> Tensor")
    library.impl("fails", lambda x: 1 / 0, "CompositeExplicitAutograd")
    x = torch.randn(16, 64, device=device).tanh()
    with pytest.raises(ZeroDivisionError):
        torch.ops.remat_tests.fails(x)
    _usable(remat, device)


def test_custom_op_is_replayed_like_any_other(remat, device, library):
    calls = []

    def double(x):
        calls.append(1)
        return x * 2

    library.define("double(Tensor x) -> Tensor")
    library.impl("double", double, "CompositeExplicitAutograd")
    y = torch.ops.remat_tests.double(torch.randn(16, 64, device=device).tanh())
    expected = y.clone()
    if _testing.evict(y):
        assert torch.equal(y, expected)
        assert len(calls) <= 2


@pytest.mark.parametrize("call", ["enable", "disable", "set_budget"])
@pytest.mark.parametrize("by", ["a read", "disable"])
def test_settings_are_not_changed_by_an_op_that_is_replayed(
    remat, device, library, call, by
):
    is_armed, refused = [], []
    arguments = () if call == "disable" else ("1GiB",)

    def changes(x):
        if is_armed:
            with pytest.raises(ValueError, match="being replayed") as error:
                getattr(remat, call)(*arguments, device=device)
            refused.append(error)
        return x.sin()

    library.define("changes(Tensor x) -> Tensor")
    library.impl("changes", changes, "CompositeExplicitAutograd")
    y = torch.ops.remat_tests.changes(torch.randn(16, 64, device=device))
    expected = y.clone()
    assert _testing.evict(y)
    is_armed.append(True)
    if by == "disable":
        remat.disable()
    assert torch.equal(y, expected)
    assert refused


@pytest.mark.parametrize("kind", ["list of lists", "dict"])
def test_tensors_in_a_nested_argument(remat, device, library, kind):
    schema, pack, first = {
        "list of lists": ("Tensor[][]", lambda t: [[t]], lambda v: v[0][0]),
        "dict": ("Dict(str, Tensor)", lambda t: {"t": t}, lambda v: v["t"]),
    }[kind]
    library.define(f"nested({schema} x, Tensor like) -> Tensor")
    library.impl("nested", lambda x, like: first(x) * 2, "CompositeExplicitAutograd")
    y = torch.randn(16, 64, device=device).tanh()
    like = torch.ones(16, device=device)
    expected = y * 2
    _testing.evict(y)
    z = torch.ops.remat_tests.nested(pack(y), like)
    y.zero_()
    _testing.evict_all()
    assert torch.equal(z, expected)


def test_exception_in_the_middle_of_a_replay(remat, device, library):
    state = {"fail": False}

    def fragile(x):
        if state["fail"]:
            raise RuntimeError("not now")
        return x + 1

    library.define("fragile(Tensor x) -> Tensor")
    library.impl("fragile", fragile, "CPU" if device == "cpu" else "CUDA")
    a = torch.randn(16, 64, device=device).tanh()
    b = torch.ops.remat_tests.fragile(a)
    c = b.sin()
    expected = c.clone()
    for value in (c, b, a):
        if not _testing.evict(value):
            pytest.skip("ops implemented in Python are not replayed")
    state["fail"] = True
    with pytest.raises(RuntimeError, match="not now"):
        c.sum()
    _testing.check_invariants()
    assert remat.stats(device).pinned_bytes == 0
    state["fail"] = False
    assert torch.equal(c, expected)


def test_keyboard_interrupt_in_backward(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        h = model(torch.randn(16, 64, device=device))
        once = [True]

        def hook(grad):
            if once.pop():
                raise KeyboardInterrupt

        handle = h.register_hook(hook)
        with pytest.raises(KeyboardInterrupt):
            h.sum().backward(retain_graph=True)
        handle.remove()
        model.zero_grad()
        h.sum().backward()
        return models.state(model)

    run_twice(step)


def test_backward_twice_without_retain_graph_is_refused_as_usual(run_twice, device):
    def step():
        x = torch.randn(16, device=device, requires_grad=True)
        loss = x.exp().sum()
        loss.backward()
        loss.backward()

    run_twice(step, expect_error="backward through the graph a second time")


def test_failed_forward_frees_its_activations(remat, device):
    model = models.deep_mlp(6).to(device)
    x = torch.randn(64, 64, device=device)
    before = remat.memory_allocated(device)
    with pytest.raises(RuntimeError):
        model(x) @ torch.ones(3, 3)
    assert remat.memory_allocated(device) == before
