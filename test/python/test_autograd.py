"""Autograd features: double backward, hooks, functions, checkpoint, forward mode."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import models


def test_double_backward(run_twice, device):
    def step():
        critic = models.deep_mlp(4).to(device)
        x = torch.randn(512, 64, device=device, requires_grad=True)
        (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        penalty = (grad.norm(dim=1) - 1).square().mean()
        penalty.backward()
        return {"penalty": penalty, "x": x.grad, **models.state(critic)}

    run_twice(step, budgets=(0.6,))


def test_third_derivative(run_twice, device):
    def step():
        x = torch.linspace(-1, 1, 500, device=device).requires_grad_()
        y = (x.sin() * x.exp()).tanh()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        y.sum().backward()
        return {"y": y, "x": x.grad}

    run_twice(step)


def test_retain_graph_gives_the_same_gradients_twice(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        loss = model(torch.randn(16, 64, device=device)).sum()
        loss.backward(retain_graph=True)
        first = [p.grad.clone() for p in model.parameters()]
        loss.backward()
        return {"first": first, **models.state(model)}

    run_twice(step)


def test_hooks_read_and_rewrite_gradients(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        seen = []
        h = x.tanh()
        h.retain_grad()
        h.register_hook(lambda g: seen.append(g.norm()) or g * 2)
        k = h.sin()
        k.register_hook(lambda g: g + h.detach() * 0.1)
        k.grad_fn.register_prehook(lambda g: (g[0] * 0.5,))
        k.square().sum().backward()
        return {"x": x.grad, "h": h.grad, "seen": seen}

    run_twice(step)


def test_module_hooks_see_values(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        seen = []
        for layer in model:
            layer.register_forward_hook(lambda m, i, o: seen.append(o.mean()))
            layer.register_full_backward_hook(lambda m, i, o: seen.append(o[0].sum()))
        model(torch.randn(16, 64, device=device)).square().sum().backward()
        return {"seen": seen, **models.state(model)}

    run_twice(step)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = x * x
        ctx.save_for_backward(x, y)
        ctx.parked = y.sin()  # not through save_for_backward
        ctx.scale = scale
        ctx.mark_non_differentiable(y)
        return x * y * scale, y

    @staticmethod
    def backward(ctx, grad, _):
        x, y = ctx.saved_tensors
        return grad * 3 * y * ctx.scale + 0 * ctx.parked, None


def test_custom_function_with_saved_and_parked_tensors(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        y, square = _Cube.apply(x.tanh(), 2.0)
        z, _ = _Cube.apply(y.sin(), 0.5)
        z.sum().backward()
        return {"x": x.grad, "y": y, "square": square, "z": z}

    run_twice(step)


class _AddOneInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_custom_function_that_writes_its_input(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        y = x * 2
        z = _AddOneInPlace.apply(y)
        z.square().sum().backward()
        return {"x": x.grad, "z": z}

    run_twice(step)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_composes(run_twice, device, reentrant):
    def step():
        blocks = nn.ModuleList(
            [nn.Sequential(models.deep_mlp(2), nn.Dropout(0.3)) for _ in range(4)]
        ).to(device)
        h = torch.randn(16, 64, device=device, requires_grad=True)
        x = h
        for i, block in enumerate(blocks):
            if i % 2:
                h = checkpoint(block, h, use_reentrant=reentrant)
            else:
                h = block(h)
        h.square().mean().backward()
        return {"x": x.grad, **models.state(blocks)}

    run_twice(step)


def test_checkpoint_within_a_budget(run_twice, device):
    def step():
        net = models.deep_mlp(16).to(device)
        x = torch.randn(256, 64, device=device, requires_grad=True)
        y = checkpoint_sequential(net, 4, x, use_reentrant=False)
        y.square().mean().backward()
        return {"x": x.grad, **models.state(net)}

    run_twice(step, budgets=(0.8, 0.6))


@pytest.mark.explicit_device
def test_nested_checkpoint(run_twice, device):
    def step():
        net = models.deep_mlp(4).to(device)

        def inner(h):
            return checkpoint(net[4:], h, use_reentrant=False).sin()

        def outer(h):
            return inner(net[:4](h))

        x = torch.randn(16, 64, device=device, requires_grad=True)
        checkpoint(outer, x, use_reentrant=False).sum().backward()
        return {"x": x.grad, **models.state(net)}

    run_twice(step)


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_saved_tensor_hooks_pack_and_unpack(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)

        def pack(t):
            return t.detach().to(torch.bfloat16)

        def offload(t):
            return t.detach().numpy().copy()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
            y = x.tanh().exp()
        with torch.autograd.graph.saved_tensors_hooks(offload, torch.from_numpy):
            y = y.sigmoid().sin()
        with torch.autograd.graph.save_on_cpu():
            y = y.exp().cos()
        y.sum().backward()
        return {"x": x.grad, "y": y}

    run_twice(step)


def test_anomaly_mode_names_the_same_function(run_twice, device):
    def step():
        x = torch.zeros(16, device=device, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # anomaly mode says that it is on
            with torch.autograd.detect_anomaly():
                y = (x.sin() * 0).sqrt()
                (y * 0).sum().backward()

    run_twice(step, expect_error="SqrtBackward0", expect_replays=False)


def test_forward_mode(run_twice, device):
    def step():
        net = models.deep_mlp(3).to(device)
        x, t = torch.randn(2, 16, 64, device=device)
        with forward_ad.dual_level():
            y = net(forward_ad.make_dual(x, t))
            value, tangent = forward_ad.unpack_dual(y)
            tangent = tangent.detach().clone()
        value.square().sum().backward()
        return {"tangent": tangent, **models.state(net)}

    run_twice(step)


def test_functorch_transforms(run_twice, device):
    def step():
        net = models.deep_mlp(2, 8).to(device)
        x, t = torch.randn(2, 5, 8, device=device)
        _, jvp = torch.func.jvp(lambda z: net(z).sin(), (x,), (t,))
        _, vjp = torch.func.vjp(net, x)
        rows = torch.func.vmap(torch.func.jacrev(net))(x)
        ahead = torch.func.vmap(torch.func.jacfwd(net))(x)
        hessian = torch.func.hessian(lambda z: net(z).square().sum())(x[0])
        parameters = dict(net.named_parameters())

        def loss(p, z):
            return torch.func.functional_call(net, p, (z,)).square().sum()

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(
            parameters, x
        )
        return [jvp, vjp(t), rows, ahead, hessian, per_sample]

    run_twice(step)


def test_functional_jacobian_and_hessian(run_twice, device):
    def step():
        net = models.deep_mlp(2, 8).to(device)
        x = torch.randn(8, device=device)
        functional = torch.autograd.functional
        return [
            functional.jacobian(net, x),
            functional.jacobian(net, x, vectorize=True),
            functional.hessian(lambda z: net(z).sum(), x),
            functional.vhp(lambda z: net(z).sum(), x, x)[1],
        ]

    run_twice(step)


def test_reentrant_backward_inside_a_hook(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        fixed = x.tanh()

        def solve(grad):
            with torch.enable_grad():
                z = fixed.detach().requires_grad_()
                out = (z * 0.5).sin()
            g = grad
            for _ in range(3):
                (back,) = torch.autograd.grad(out, z, g, retain_graph=True)
                g = grad + back * 0.1
            return g

        y = fixed * 1.0
        y.register_hook(solve)
        y.square().sum().backward()
        return {"x": x.grad}

    run_twice(step)


def test_two_stage_backward_through_detached_leaves(run_twice, device):
    def step():
        first, second = models.deep_mlp(3).to(device), models.deep_mlp(3).to(device)
        h = first(torch.randn(16, 64, device=device))
        cut = h.detach().requires_grad_()
        second(cut).square().mean().backward()
        h.backward(gradient=cut.grad)
        return {"cut": cut.grad, "a": models.state(first), "b": models.state(second)}

    run_twice(step)


def test_autograd_grad_of_several_inputs_with_unused(run_twice, device):
    def step():
        x = [torch.randn(16, 64, device=device, requires_grad=True) for _ in range(3)]
        y = (x[0].tanh() @ x[1].sin().t()).exp()
        grads = torch.autograd.grad(y.sum(), x, allow_unused=True)
        assert grads[2] is None
        return grads[:2]

    run_twice(step)


def test_gradients_accumulate_in_place_and_are_stolen_as_usual(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        addresses = []
        for _ in range(3):
            model(torch.randn(16, 64, device=device)).sum().backward()
            addresses.append([id(p.grad) for p in model.parameters()])
        same = addresses[0] == addresses[1] == addresses[2]
        return {"same": same, **models.state(model)}

    run_twice(step)


@pytest.mark.cpu_only("the emulated device has no sparse tensors")
def test_sparse_gradients(run_twice, device):
    def step():
        embedding = nn.Embedding(100, 16, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            ids = torch.randint(0, 100, (8, 4))
            embedding(ids).tanh().square().sum().backward()
            optimizer.step()
        return {"w": embedding.weight.detach()}

    run_twice(step)


def test_gradient_clipping_and_norms(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        norms = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            F.mse_loss(
                model(torch.randn(16, 64, device=device)),
                torch.randn(16, 64, device=device),
            ).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
            optimizer.zero_grad()
        return {"norms": norms, **models.state(model)}

    run_twice(step)


def test_tied_weights_and_shared_blocks(run_twice, device):
    def step():
        block = models.deep_mlp(1).to(device)
        embedding = nn.Embedding(20, 64).to(device)
        h = embedding(torch.randint(0, 20, (16,)))
        for _ in range(6):
            h = block(h) + h
        F.cross_entropy(h @ embedding.weight.t(), torch.arange(16)).backward()
        return {"b": models.state(block), "e": models.state(embedding)}

    run_twice(step)


def test_inference_mode_and_no_grad(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        x = torch.randn(16, 64, device=device)
        with torch.inference_mode():
            a = model(x)
            b = a.clone().mul_(2)
        with torch.no_grad():
            c = model(x + 1)
        return {"a": a.clone(), "b": b.clone(), "c": c}

    run_twice(step)
