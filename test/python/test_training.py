"""Whole training runs of ordinary models, within budgets and under chaos."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import models
import runs

# What one op needs at once (its inputs, outputs and workspace, beside parameters,
# gradients and the optimizer's state) must fit: models whose largest op is a good part
# of their peak get a budget with room for it.
BUDGETS = (0.6, 0.4, 0.2)


def _fit(module, loss_of, steps=3, **options):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, **options)
    losses = []
    for i in range(steps):
        loss = loss_of(i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": losses, **models.state(module)}


def test_deep_network(run_twice, device):
    def train():
        model = models.deep_mlp(40, 64).to(device)
        return _fit(
            model,
            lambda i: model(torch.randn(1024, 64, device=device)).square().mean(),
        )

    run_twice(train, budgets=BUDGETS)


def test_transformer_with_dropout(run_twice, device):
    def train():
        model = models.transformer(64, 4).to(device)
        return _fit(
            model,
            lambda i: model(torch.randn(16, 48, 64, device=device)).square().mean(),
        )

    run_twice(train, budgets=BUDGETS)


def test_conv_net_with_batch_norm_and_dropout(run_twice, device):
    def train():
        model = models.conv_net(16).to(device)
        model(torch.zeros(2, 3, 16, 16, device=device))
        return _fit(
            model,
            lambda i: F.cross_entropy(
                model(torch.randn(32, 3, 16, 16, device=device)),
                torch.randint(0, 4, (32,), device=device),
            ),
        )

    run_twice(train, budgets=runs.with_convolutions(0.6, 0.4))


def test_u_net_with_long_skips(run_twice, device):
    class UNet(nn.Module):
        def __init__(self, width=8, depth=3):
            super().__init__()
            sizes = [width * 2**i for i in range(depth)]
            self.start = nn.Conv2d(3, width, 3, padding=1)
            self.down = nn.ModuleList(
                [nn.Conv2d(n, 2 * n, 3, padding=1) for n in sizes]
            )
            self.up = nn.ModuleList(
                [nn.Conv2d(3 * n, n, 3, padding=1) for n in reversed(sizes)]
            )

        def forward(self, x):
            h, kept = F.relu(self.start(x)), []
            for layer in self.down:
                kept.append(h)
                h = F.relu(layer(F.max_pool2d(h, 2)))
            for layer in self.up:
                h = F.interpolate(h, scale_factor=2, mode="bilinear")
                h = F.relu(layer(torch.cat([h, kept.pop()], 1)))
            return h

    def train():
        model = UNet().to(device)
        return _fit(
            model,
            lambda i: model(torch.randn(4, 3, 32, 32, device=device)).square().mean(),
        )

    run_twice(train, budgets=runs.with_convolutions(0.8, 0.7))


def test_batches_of_changing_shape(run_twice, device):
    def train():
        model = models.transformer(32, 2).to(device)
        shapes = [(4, 31), (16, 48), (7, 23), (2, 90), (16, 49), (1, 7)]

        def loss_of(i):
            batch, time = shapes[i]
            ends = torch.randint(time // 2 + 1, time + 1, (batch, 1), device=device)
            padding = torch.arange(time, device=device) >= ends
            x = torch.randn(batch, time, 32, device=device)
            y = model(x, src_key_padding_mask=padding)
            return y[~padding].square().mean()

        return _fit(model, loss_of, steps=len(shapes))

    run_twice(train, budgets=(0.6, 0.4))


def test_experts_chosen_per_token(run_twice, device):
    def train():
        experts = nn.ModuleList([models.deep_mlp(2, 32) for _ in range(5)])
        gate = nn.Linear(32, 5)
        both = nn.ModuleList([experts, gate]).to(device)
        chosen = []

        def loss_of(_):
            x = torch.randn(96, 32, device=device)
            weights, which = gate(x).softmax(-1).topk(2, -1)
            chosen.append(torch.bincount(which.flatten(), minlength=5))
            y = torch.zeros_like(x)
            for i, expert in enumerate(experts):
                rows, slots = (which == i).nonzero(as_tuple=True)
                part = expert(x[rows]) * weights[rows, slots, None]
                y = y.index_add(0, rows, part)
            return y.square().mean() + weights.var()

        return {**_fit(both, loss_of), "chosen": chosen}

    run_twice(train, budgets=(0.6,))


def test_one_block_used_many_times(run_twice, device):
    def train():
        block = models.deep_mlp(2, 64).to(device)

        def loss_of(_):
            h = torch.randn(256, 64, device=device)
            total = h.new_zeros(())
            for _ in range(10):
                h = block(h) + h.detach() * 0.1
                total = total + h.square().mean()
            return total

        return _fit(block, loss_of)

    run_twice(train, budgets=BUDGETS)


def test_gradients_accumulated_over_micro_batches(run_twice, device):
    def train():
        model = models.deep_mlp(10, 64).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for i in range(6):
            loss = model(torch.randn(2048, 64, device=device)).square().mean()
            (loss / 3).backward()
            losses.append(loss.detach())
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        return {"losses": losses, **models.state(model)}

    run_twice(train, budgets=(0.7, 0.6))


def test_physics_informed_network_with_second_derivatives(run_twice, device):
    def train():
        model = nn.Sequential(
            nn.Linear(2, 32), models.deep_mlp(3, 32), nn.Linear(32, 1)
        )
        model.to(device)

        def loss_of(_):
            x = torch.rand(512, 2, device=device, requires_grad=True)
            u = model(x)
            (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
            return (second[:, 0] - first[:, 1]).square().mean()

        return _fit(model, loss_of)

    run_twice(train, budgets=(0.6, 0.5))


@pytest.mark.parametrize("foreach", [False, True])
def test_model_with_more_parameters_than_activations(run_twice, device, foreach):
    def train():
        model = models.deep_mlp(4, 128).to(device)
        return _fit(
            model,
            lambda i: model(torch.randn(1024, 128, device=device)).square().mean(),
            foreach=foreach,
        )

    run_twice(train, budgets=(0.7,))


def test_evaluation_between_training_steps(run_twice, device):
    def train():
        model = models.conv_net(8).to(device)
        model(torch.zeros(2, 3, 12, 12, device=device))
        seen = []

        def loss_of(i):
            model.eval()
            with torch.no_grad():
                seen.append(model(torch.ones(2, 3, 12, 12, device=device)))
            model.train()
            x = torch.randn(16, 3, 12, 12, device=device)
            return model(x).square().mean()

        return {**_fit(model, loss_of), "seen": seen}

    run_twice(train, budgets=runs.with_convolutions(0.6))
