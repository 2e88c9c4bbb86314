"""Writes that schemas declare: in place, through aliases, ``out=``, lists, resizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda.remat import _testing

import models
import runs


def _pair(device):
    x = torch.randn(16, 64, device=device, requires_grad=True)
    return x, x.tanh() * 2


def test_in_place_op_makes_a_new_version(remat, device):
    y = torch.randn(64, 64, device=device).tanh()
    before = y.clone()
    y.mul_(2).add_(1)
    expected = before * 2 + 1
    assert _testing.evict(y)
    assert torch.equal(y, expected)


def test_value_computed_from_the_old_version_replays_from_the_old_version(
    remat, device
):
    y = torch.randn(64, 64, device=device).tanh()
    z = y.sin()
    expected = z.clone()
    y.mul_(3)
    final = y.clone()
    assert _testing.evict(z)
    assert _testing.evict(y)
    assert torch.equal(z, expected)
    assert torch.equal(y, final)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.mul_(0.5),
        lambda y: y[2:5].mul_(3),
        lambda y: y.t()[1].add_(1),
        lambda y: y.view(4, 4, 64)[1].zero_(),
        lambda y: y.__setitem__((slice(None), 3), 7.0),
        lambda y: y.__setitem__(torch.tensor([1, 3]), 0.25),
        lambda y: y.index_add_(0, torch.tensor([0, 0, 2]), torch.ones(3, 64)),
        lambda y: y.index_copy_(0, torch.tensor([1]), torch.ones(1, 64)),
        lambda y: y.scatter_(1, torch.zeros(16, 1, dtype=torch.long), 2.0),
        lambda y: y.masked_fill_(torch.eye(16, 64, dtype=torch.bool), 0.0),
        lambda y: y[0].copy_(y[1]),
        lambda y: y[0:8].copy_(torch.arange(64.0)),
        lambda y: y.as_strided((8, 8), (64, 1), 5).fill_(1.5),
        lambda y: y.diagonal().add_(1),
        lambda y: y.unbind(1)[2].neg_() if not y.requires_grad else y.neg_(),
        lambda y: y.transpose_(0, 1).mul_(2),
        lambda y: y.t_().add_(1),
        lambda y: y.squeeze_().unsqueeze_(0).add_(1),
        lambda y: F.relu_(y),
        lambda y: F.hardtanh_(y, -0.3, 0.3),
        lambda y: F.threshold_(y, 0.1, -1.0),
        lambda y: y.clamp_(-0.5, 0.5),
        lambda y: y.fill_(2.0),
        lambda y: y.zero_(),
        lambda y: y.uniform_(),
        lambda y: y.addmm_(y.detach().clone(), torch.eye(64)),
        lambda y: y.cumsum_(0),
        lambda y: y.swapaxes_(0, 1).sin_(),
    ],
)
def test_in_place_write_gives_the_same_gradients(run_twice, device, write):
    def step():
        x, y = _pair(device)
        early = y * 3
        write(y)
        z = y * 1.5 + 1
        (z.square().sum() + early.sum()).backward()
        return {"x": x.grad, "y": y, "z": z, "early": early}

    run_twice(step)


def test_write_through_one_alias_is_read_through_another(run_twice, device):
    def step():
        x, y = _pair(device)
        left, right = y[:, :40], y[:, 20:]
        left.mul_(2)
        right.add_(1)
        (left.sum() + right.square().sum()).backward()
        return {"x": x.grad, "y": y, "left": left, "right": right}

    run_twice(step)


def test_residual_added_in_place(run_twice, device):
    def step():
        convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)])
        convs.to(device)
        h = torch.randn(4, 8, 12, 12, device=device)
        for conv in convs:
            out = conv(h)
            out += h
            h = F.relu_(out)
        h.square().mean().backward()
        return models.state(convs)

    run_twice(step, budgets=runs.with_convolutions(0.6))


def test_write_through_data_is_what_backward_sees(run_twice, device):
    def step():
        x, y = _pair(device)
        z = y.square()
        y.data.mul_(0.5)
        z.sum().backward()
        return {"x": x.grad, "y": y, "z": z}

    run_twice(step)


def test_write_through_detach_of_an_evicted_value(remat, device):
    y = torch.randn(64, 64, device=device).tanh()
    expected = y.clone()
    assert _testing.evict(y)
    y.detach().data[3].fill_(9)
    expected[3] = 9
    assert _testing.evict(y)
    assert torch.equal(y, expected)


def test_data_assignment_swaps_the_storage(run_twice, device):
    def step():
        x, y = _pair(device)
        z = y.square()
        y.data = torch.full_like(y, 3.0).sin()
        z.sum().backward()
        return {"x": x.grad, "y": y}

    run_twice(step)


@pytest.mark.parametrize("out_shape", [(0,), (16, 64)])
def test_out_argument_is_a_write(run_twice, device, out_shape):
    def step():
        x = torch.randn(16, 64, device=device)
        a = x.tanh()
        buffer = torch.empty(out_shape, device=device)
        torch.add(a, 1, out=buffer)
        first = buffer.sin()
        torch.mul(a, 2, out=buffer)
        second = buffer.cos()
        return {"first": first, "second": second, "buffer": buffer}

    run_twice(step)


def test_out_argument_with_several_outputs(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device).tanh()
        values = torch.empty(0, device=device)
        indices = torch.empty(0, dtype=torch.long, device=device)
        torch.max(x, 1, out=(values, indices))
        kept = values * 2
        torch.min(x, 1, out=(values, indices))
        return {"kept": kept, "values": values, "indices": indices}

    run_twice(step)


def test_foreach_lists_are_read_and_written(run_twice, device):
    def step():
        tensors = [torch.randn(n, device=device).tanh() for n in (5, 300, 64)]
        others = [t.sin() for t in tensors]
        early = [t * 2 for t in tensors]
        torch._foreach_mul_(tensors, 0.5)
        torch._foreach_add_(tensors, others, alpha=2)
        torch._foreach_addcdiv_(tensors, others, [o.abs() + 1 for o in others], 0.3)
        fresh = torch._foreach_sqrt(torch._foreach_abs(tensors))
        torch._foreach_copy_(others, fresh)
        norms = torch._foreach_norm(fresh)
        return {"t": tensors, "o": others, "e": early, "f": fresh, "n": norms}

    run_twice(step)


def test_resize_keeps_old_elements(run_twice, device):
    def step():
        y = torch.randn(16, 64, device=device).tanh()
        early = y * 2
        y.resize_(8, 64)
        late = y.sin()
        y.resize_(8, 32)
        return {"early": early, "late": late, "y": y}

    run_twice(step)


def test_resize_that_grows_then_fills(run_twice, device):
    def step():
        y = torch.randn(4, 64, device=device).tanh()
        y.resize_(32, 64)
        y[4:].zero_()
        return {"y": y, "z": y.sin()}

    run_twice(step)


def test_untyped_storage_resize(run_twice, device):
    def step():
        y = torch.randn(16, 64, device=device).tanh()
        z = y.sin()
        storage = y.untyped_storage()
        size = storage.size()
        storage.resize_(0)
        storage.resize_(size)
        y.fill_(0.5)
        return {"y": y, "z": z, "w": z * y}

    run_twice(step)


def test_set_makes_two_tensors_share_a_storage(run_twice, device):
    def step():
        y = torch.randn(16, 64, device=device).tanh()
        z = torch.empty(0, device=device)
        z.set_(y.untyped_storage(), 64, (4, 64), (64, 1))
        z.mul_(2)
        w = torch.randn(3, device=device).sin()
        w.set_(y)
        w.add_(1)
        return {"y": y, "z": z, "w": w}

    run_twice(step)


def test_optimizer_step_between_two_backwards_of_one_graph(run_twice, device):
    def step():
        layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(6)]).to(device)
        biases = [layer.bias for layer in layers]
        h = torch.randn(64, 32, device=device)
        for layer in layers:
            h = torch.tanh(layer(h))
        loss = h.square().mean()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for bias in biases:
                bias.sub_(0.1)  # biases are not saved, so autograd allows this
        layers.zero_grad()
        loss.backward()
        return models.state(layers)

    run_twice(step, budgets=(0.6,))


def test_weights_stepped_after_forward_do_not_change_a_kept_output(remat, device):
    layer = nn.Linear(64, 64).to(device)
    x = torch.randn(32, 64, device=device)
    with torch.no_grad():
        y = layer(x)
    expected = y.clone()
    _testing.evict(y)
    with torch.no_grad():
        layer.weight.add_(1)
    assert torch.equal(y, expected)


def test_staging_buffer_overwritten_before_backward(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        staging = torch.zeros(16, 64, device=device)
        losses = []
        for i in range(3):
            staging.copy_(torch.full((16, 64), float(i + 1)).sin())
            losses.append(model(staging * 1.0).square().mean())
        staging.fill_(float("nan"))
        sum(losses).backward()
        return {"losses": losses, **models.state(model)}

    run_twice(step, budgets=(0.6,))


def test_kv_cache_written_chunk_by_chunk(run_twice, device):
    def step():
        torch.manual_seed(1)
        project = nn.Linear(32, 96).to(device)
        cache = torch.zeros(2, 2, 24, 32, device=device)
        outs = []
        for start in range(0, 24, 8):
            q, k, v = project(torch.randn(2, 8, 32, device=device)).chunk(3, -1)
            cache = cache.clone() if start else cache
            cache[0, :, start : start + 8] = k
            cache[1].index_copy_(1, torch.arange(start, start + 8), v)
            keys, values = cache[0, :, : start + 8], cache[1, :, : start + 8]
            outs.append(F.scaled_dot_product_attention(q, keys, values))
        loss = torch.cat(outs, 1).square().mean()
        loss.backward()
        return {"loss": loss, "cache": cache, **models.state(project)}

    run_twice(step)


def test_queue_overwritten_before_backward(run_twice, device):
    def step():
        encoder = models.deep_mlp(3).to(device)
        queue = F.normalize(torch.randn(64, 32, device=device), dim=0)
        losses = []
        for i in range(3):
            q = F.normalize(encoder(torch.randn(8, 64, device=device)))
            losses.append(F.cross_entropy(q @ queue.clone(), torch.arange(8)))
            with torch.no_grad():
                queue[:, i * 8 : (i + 1) * 8] = q.t()
        sum(losses).backward()
        return {"losses": losses, "queue": queue, **models.state(encoder)}

    run_twice(step)


def test_moving_average_of_weights_used_as_a_teacher(run_twice, device):
    def step():
        student, teacher = models.deep_mlp(3).to(device), models.deep_mlp(3).to(device)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(3):
            x = torch.randn(512, 64, device=device)
            with torch.no_grad():
                target = teacher(x)
            loss = F.mse_loss(student(x), target)
            with torch.no_grad():
                for t, s in zip(teacher.parameters(), student.parameters()):
                    t.lerp_(s, 0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return {"losses": losses, "t": models.state(teacher), **models.state(student)}

    run_twice(step, budgets=(0.6,))


def test_optimizer_in_backward(run_twice, device):
    def step():
        model = models.deep_mlp(5).to(device)
        for parameter in model.parameters():
            own = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

            def hook(p, own=own):
                own.step()
                own.zero_grad()

            parameter.register_post_accumulate_grad_hook(hook)
        losses = []
        for _ in range(3):
            loss = model(torch.randn(16, 64, device=device)).square().mean()
            loss.backward()
            losses.append(loss.detach())
        return {"losses": losses, **models.state(model)}

    run_twice(step)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.Adafactor, {}),
        (torch.optim.NAdam, {}),
    ],
)
def test_optimizer_trains_alike(run_twice, device, optimizer, options):
    def step():
        model = models.deep_mlp(4, 32).to(device)
        return models.train(
            model,
            lambda: torch.randn(64, 32, device=device),
            optimizer=optimizer,
            **options,
        )

    run_twice(step)


@pytest.mark.parametrize("chaos", [False, True])
def test_modified_by_an_inplace_operation_is_still_raised(
    remat_off, device, monkeypatch, chaos
):
    monkeypatch.setenv("PYTORCH_REMAT_CHAOS", "1" if chaos else "0")
    remat_off.enable(device=device)
    x = torch.randn(8, device=device, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_replay_does_not_change_version_counters(remat, device):
    y = torch.randn(64, 64, device=device).tanh()
    y.add_(1)
    version = y._version
    assert _testing.evict(y)
    y.sum()
    assert y._version == version
