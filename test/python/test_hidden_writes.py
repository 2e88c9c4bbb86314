"""Writes that no schema shows: statistics, observers, renormalised rows, noise."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization as quantization
import torch.nn.functional as F
from torch import nn
from torch.cuda.remat import _testing

import models
import runs


def _images(device, count=4):
    return torch.randn(count, 3, 12, 12, device=device)


def test_batch_norm_updates_its_statistics_once_per_step(run_twice, device):
    def train():
        net = models.conv_net().to(device)
        found = models.train(net, lambda: _images(device), steps=3)
        assert int(net[1].num_batches_tracked) == 4
        return found

    run_twice(train)


def test_batch_norm_statistics_are_exact_within_a_budget(run_twice, device):
    def train():
        net = models.conv_net(16).to(device)
        return models.train(net, lambda: _images(device, 16), steps=3)

    run_twice(train, budgets=runs.with_convolutions(0.6))


def test_batch_norm_replay_leaves_the_statistics_alone(remat, device):
    norm = nn.BatchNorm1d(64).to(device)
    y = norm(torch.randn(32, 64, device=device))
    expected = y.clone()
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    if _testing.evict(y):
        assert torch.equal(y, expected)
    assert torch.equal(norm.running_mean, mean)
    assert torch.equal(norm.running_var, var)
    assert int(norm.num_batches_tracked) == 1


def test_eval_batch_norm_replays_with_the_statistics_of_then(remat, device):
    norm = nn.BatchNorm1d(64).to(device)
    norm(torch.randn(32, 64, device=device))
    norm.eval()
    with torch.no_grad():
        y = norm(torch.randn(32, 64, device=device))
    expected = y.clone()
    _testing.evict(y)
    norm.train()
    norm(torch.randn(32, 64, device=device) + 5)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("momentum", [0.1, None, 1.0])
def test_batch_norm_momentum_forms(run_twice, device, momentum):
    def train():
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU()
        ).to(device)
        return models.train(net, lambda: _images(device))

    run_twice(train)


def test_teacher_in_train_mode_under_no_grad(run_twice, device):
    def step():
        teacher, student = models.conv_net().to(device), models.conv_net().to(device)
        losses = []
        for _ in range(2):
            x = _images(device)
            with torch.no_grad():
                target = teacher(x)
            loss = F.mse_loss(student(x), target)
            loss.backward()
            losses.append(loss)
        return {"l": losses, "t": models.state(teacher), "s": models.state(student)}

    run_twice(step)


def test_instance_norm_with_running_statistics(run_twice, device):
    def train():
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
            nn.GELU(),
        ).to(device)
        found = models.train(net, lambda: _images(device))
        net.eval()
        return {**found, "eval": net(_images(device))}

    run_twice(train)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_batch_norm_flavours_in_train_and_eval(run_twice, device, affine, track):
    def step():
        norm = nn.BatchNorm2d(3, affine=affine, track_running_stats=track).to(device)
        outs = [norm(_images(device).requires_grad_()) for _ in range(2)]
        norm.eval()
        outs.append(norm(_images(device).requires_grad_()))
        outs = [o.sin() for o in outs]
        if outs[0].requires_grad:
            sum(o.sum() for o in outs).backward()
        return {"outs": outs, **models.state(norm)}

    run_twice(step)


def test_rrelu_keeps_its_noise(run_twice, device):
    def step():
        lins = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)]).to(device)
        x = torch.randn(32, 64, device=device, requires_grad=True)
        h = x
        for lin in lins:
            h = F.rrelu(lin(h), 0.05, 0.4, training=True)
        h = F.rrelu_(h.clone(), 0.1, 0.3, training=True)
        (h * torch.linspace(-1, 1, 64)).mean().backward()
        return {"x": x.grad, **models.state(lins)}

    run_twice(step)


def test_fake_quant_observers_move_once(run_twice, device):
    def train():
        layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)]).to(device)
        fakes = nn.ModuleList(
            [
                quantization.FusedMovingAvgObsFakeQuantize(
                    observer=quantization.MovingAverageMinMaxObserver,
                    quant_min=0,
                    quant_max=255,
                    dtype=torch.quint8,
                )
                if i % 2
                else quantization.FakeQuantize()
                for i in range(3)
            ]
        )
        both = nn.ModuleList([layers, fakes])
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            h = torch.randn(64, 32, device=device)
            for layer, fake in zip(layers, fakes):
                h = fake(torch.relu(layer(h)))
            loss = h.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return {"losses": losses, **models.state(both)}

    run_twice(train)


@pytest.mark.parametrize("sparse", [False, True])
def test_embedding_max_norm_renormalises_once(run_twice, device, sparse):
    def step():
        embedding = nn.Embedding(50, 32, max_norm=1.0, sparse=sparse).to(device)
        with torch.no_grad():
            embedding.weight.mul_(4)
        ids = torch.randint(0, 50, (4, 20))
        weight_view = embedding.weight.clone()
        y = embedding(ids)
        z = embedding(ids + 0)
        (y.sin() * z).sum().backward()
        grad = embedding.weight.grad
        return {
            "w": embedding.weight.detach(),
            "g": grad.to_dense() if sparse else grad,
            "y": y,
            "before": weight_view,
        }

    run_twice(step)


def test_embedding_bag_max_norm(run_twice, device):
    def step():
        bag = nn.EmbeddingBag(50, 32, max_norm=0.5, mode="mean").to(device)
        y = bag(torch.randint(0, 50, (40,)), torch.arange(0, 40, 8))
        y.sin().sum().backward()
        return {"y": y, **models.state(bag)}

    run_twice(step)


def test_spectral_norm_vectors_move_once_per_forward(run_twice, device):
    def step():
        old = nn.utils.spectral_norm(nn.Linear(64, 64))
        new = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))
        net = nn.Sequential(old, nn.Tanh(), new, nn.Tanh()).to(device)
        x = torch.randn(16, 64, device=device)
        loss = net(x).sum() + net(x * 0.5).square().sum()
        loss.backward()
        return models.state(net)

    run_twice(step)


def test_weight_norm_and_orthogonal_with_cached_parametrization(run_twice, device):
    def step():
        first = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
        second = nn.utils.parametrizations.orthogonal(nn.Linear(32, 32))
        net = nn.Sequential(first, nn.Tanh(), second).to(device)
        x = torch.randn(16, 32, device=device)
        with nn.utils.parametrize.cached():
            loss = (net(x) + net(x.sin())).square().mean()
        loss.backward()
        return models.state(net)

    run_twice(step)


def test_ctc_and_other_losses_with_kept_intermediates(run_twice, device):
    def step():
        x = torch.randn(20, 4, 10, device=device, requires_grad=True)
        loss = F.ctc_loss(
            x.log_softmax(-1),
            torch.randint(1, 10, (4, 6)),
            torch.full((4,), 20),
            torch.randint(2, 6, (4,)),
        )
        loss.backward()
        return {"loss": loss, "x": x.grad}

    run_twice(step)
