"""Random numbers: a replay draws the same ones and moves no stream."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda.remat import _testing

import models


@pytest.mark.parametrize(
    "dropout",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(x.clone(), 0.3, inplace=True),
        lambda x: F.alpha_dropout(x, 0.3, training=True),
        lambda x: F.feature_alpha_dropout(x[None], 0.3, training=True)[0],
        lambda x: F.dropout1d(x, 0.3),
        lambda x: F.dropout2d(x.reshape(4, 4, 4, 16), 0.3).reshape(16, 64),
        lambda x: torch.native_dropout(x, 0.3, True)[0],
        lambda x: F.gumbel_softmax(x),
        lambda x: x + torch.randn_like(x) * 0.1,
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: x + x.new_empty(x.shape).normal_(),
        lambda x: x.masked_fill(torch.rand(x.shape) < 0.2, 0.0),
        lambda x: x[torch.randperm(len(x))],
        lambda x: x * torch.multinomial(x.detach().abs(), 64, replacement=True),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2),
    ],
)
def test_random_op_replays_the_same_numbers(run_twice, device, dropout):
    def step():
        model = models.deep_mlp(2).to(device)
        x = torch.randn(16, 64, device=device, requires_grad=True)
        y = dropout(model(x))
        z = dropout(y.tanh())
        z.square().sum().backward()
        return {"y": y, "z": z, "x": x.grad, **models.state(model)}

    run_twice(step)


def test_dropout_in_training_keeps_a_budget(run_twice, device):
    def train():
        model = nn.Sequential(
            *[
                layer
                for _ in range(8)
                for layer in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5))
            ]
        ).to(device)
        return models.train(model, lambda: torch.randn(256, 64, device=device))

    run_twice(train, budgets=(0.6, 0.4))


def test_explicit_generator_replays_from_its_own_state(remat, device):
    generator = torch.Generator(device).manual_seed(5)
    x = torch.randn(64, generator=generator, device=device)
    y = torch.rand(64, generator=generator, device=device)
    state = generator.get_state()
    expected = x.clone(), y.clone()
    assert _testing.evict(x)
    assert _testing.evict(y)
    generator.manual_seed(77)
    after_seed = generator.get_state()
    assert torch.equal(y, expected[1])
    assert torch.equal(x, expected[0])
    assert torch.equal(generator.get_state(), after_seed)
    assert not torch.equal(state, after_seed)


def test_explicit_generator_may_die_before_the_replay(remat, device):
    x = torch.randn(64, generator=torch.Generator(device).manual_seed(5), device=device)
    expected = x.clone()
    assert _testing.evict(x)
    assert torch.equal(x, expected)


def test_global_stream_is_where_it_was_after_a_replay(remat, device):
    x = torch.randn(1000, device=device)
    y = F.dropout(x, 0.5)
    torch.manual_seed(3)
    expected = torch.randn(8)
    torch.manual_seed(3)
    assert _testing.evict(y)
    y.sum()
    assert torch.equal(torch.randn(8), expected)


def test_reseeding_between_forward_and_backward_changes_nothing(run_twice, device):
    def step():
        model = nn.Sequential(models.deep_mlp(3), nn.Dropout(0.5), nn.Linear(64, 64))
        model.to(device)
        loss = model(torch.randn(16, 64, device=device)).square().mean()
        torch.manual_seed(99)
        drawn = torch.randn(4)
        loss.backward()
        return {"drawn": drawn, "next": torch.randn(4), **models.state(model)}

    run_twice(step)


def test_draws_in_a_backward_hook_are_interleaved_as_without(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        h = F.dropout(x.tanh(), 0.4)
        h.register_hook(lambda g: g + torch.randn_like(g) * 0.1)
        k = F.dropout(h.sin(), 0.4)
        k.sum().backward()
        return {"x": x.grad, "next": torch.rand(3)}

    run_twice(step)


def test_fork_rng_and_restored_states_are_respected(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            y = F.dropout(x.tanh(), 0.5)
        z = F.dropout(y.sin(), 0.5)
        z.sum().backward()
        return {"x": x.grad, "z": z}

    run_twice(step)


def test_python_and_numpy_streams_are_not_touched_by_a_replay(remat, device):
    x = torch.randn(100, device=device).tanh()
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), repr(np.random.get_state(legacy=False))
    assert _testing.evict(x)
    x.sum()
    assert (random.getstate(), repr(np.random.get_state(legacy=False))) == before


def test_python_decisions_are_not_run_again(run_twice, device):
    def step():
        model = models.deep_mlp(8).to(device)
        h = torch.randn(16, 64, device=device)
        kept = []
        for layer in model:
            keep = random.random() < 0.6 or np.random.rand() < 0.2
            kept.append(keep)
            h = layer(h) if keep else h * 0.5
        h.sum().backward()
        return {"kept": kept, **models.state(model)}

    run_twice(step)
