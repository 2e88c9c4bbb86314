"""Nothing left to evict is an error that says why, and training goes on after it."""

from __future__ import annotations

import re

import pytest
import torch
from torch.cuda.remat import _testing

import models
import runs

MIB = 1 << 20


def _fits(remat, device, more):
    return remat.memory_allocated(device) + more


def test_allocation_above_the_budget_is_refused(remat, device):
    budget = _fits(remat, device, 4 * MIB)
    remat.set_budget(budget, device=device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(budget + 1, dtype=torch.uint8, device=device)
    assert remat.stats(device).ooms == 1


def test_error_names_budget_use_pins_and_a_way_out(remat, device):
    leaf = torch.from_numpy(__import__("numpy").zeros(8, "float32"))
    kept = torch.randn(MIB // 4, device=device)  # 1 MiB
    remat.pin(kept)
    budget = _fits(remat, device, 4 * MIB)
    remat.set_budget(budget, device=device)
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.zeros(budget + 1, dtype=torch.uint8, device=device)
    text = str(refused.value)
    for words in ("budget", "in use", "pinned", "leaf", "escaped", "evictable"):
        assert words in text, (words, text)
    assert re.search(r"\d(\.\d+)? ?(B|KiB|MiB|GiB)", text), text
    assert re.search("raise|unpin|smaller", text), text
    remat.unpin(kept)
    del leaf


def test_out_of_memory_is_a_runtime_error_as_on_cuda(remat, device):
    budget = _fits(remat, device, MIB)
    remat.set_budget(budget, device=device)
    with pytest.raises(RuntimeError):
        # More than all of it: there may be free blocks that are counted already.
        torch.zeros(budget + 1, dtype=torch.uint8, device=device)


def test_refused_allocation_evicts_nothing_for_nothing(remat, device):
    y = torch.randn(MIB // 4, device=device).tanh()
    expected = y.clone()
    remat.set_budget(_fits(remat, device, 2 * MIB), device=device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1 << 40, dtype=torch.uint8, device=device)
    assert torch.equal(y, expected)
    _testing.check_invariants()


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_budget_below_what_is_pinned(remat, device):
    weights = torch.nn.Linear(512, 512).to(device)  # 1 MiB
    x = torch.randn(4, 512, device=device)
    remat.pin(weights.weight)
    remat.set_budget(MIB // 2, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="pinned"):
        weights(x)
    remat.set_budget("1GiB", device=device)
    assert weights(x).shape == (4, 512)
    remat.unpin(weights.weight)


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_budget_below_the_leaves_from_before(remat_off, device):
    x = torch.randn(MIB, device=device)  # 4 MiB, made before enable: a leaf
    remat_off.enable(MIB, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="leaf"):
        x + 1
    remat_off.set_budget(float("inf"), device=device)
    assert torch.equal(x + 1 - 1, x + 1 - 1)


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_inputs_of_the_running_op_are_not_evicted(remat, device):
    a = torch.randn(512, 512, device=device).tanh()
    b = torch.randn(512, 512, device=device).tanh()
    expected = a @ b
    remat.set_budget(_fits(remat, device, 0) + MIB // 2, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="in use"):
        torch.cat([a, b, expected] * 3)
    remat.set_budget("1GiB", device=device)
    assert torch.equal(a @ b, expected)


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_error_names_the_op_that_asked(remat, device):
    a = torch.randn(512, 512, device=device).tanh()  # 1 MiB
    remat.pin(a)
    evicted = a.exp()
    assert _testing.evict(evicted)
    remat.set_budget(_fits(remat, device, MIB // 2), device=device)
    with pytest.raises(
        torch.OutOfMemoryError, match=r"was for aten::mm \(given 1\.00 MiB\); what"
    ):
        a @ a
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"a replay of aten::exp \(given 1\.00 MiB\), for aten::sum \(given 1\.0",
    ):
        evicted.sum()
    remat.unpin(a)


def test_training_goes_on_with_a_smaller_batch(remat_off, device):
    def step(model, optimizer, batch):
        loss = model(torch.ones(batch, 128, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach().clone()

    def build():
        torch.manual_seed(0)
        model = models.deep_mlp(4, 128).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer, 64)
        return model, optimizer

    model, optimizer = build()
    expected = step(model, optimizer, 64), models.state(model)
    twin, other = build()
    remat_off.enable(_fits(remat_off, device, 3 * MIB), device=device)
    with pytest.raises(torch.OutOfMemoryError):
        step(twin, other, 64 * 1024)
    found = step(twin, other, 64)
    assert torch.equal(found, expected[0])
    for parameter, twin_parameter in zip(model.parameters(), twin.parameters()):
        assert torch.equal(parameter, twin_parameter)
    _testing.check_invariants()


def test_values_are_intact_after_an_error_in_the_middle_of_a_step(run_twice, device):
    def step():
        model = models.deep_mlp(6).to(device)
        h, fails = torch.randn(64, 64, device=device), 0
        for layer in model:
            h = layer(h)
            try:
                torch.zeros(1 << 45, device=device)
            except RuntimeError:
                fails += 1
        h.square().mean().backward()
        return {"fails": fails, **models.state(model)}

    run_twice(step, budgets=(0.6,))


def test_every_budget_of_a_fine_grid_works_or_says_why(remat_off, device):
    def train():
        model = models.deep_mlp(12, 64).to(device)
        return models.train(
            model,
            lambda: torch.randn(256, 64, device=device),
            steps=2,
            optimizer=torch.optim.SGD,
        )

    plain = runs.execute(train, device)
    worked = []
    for percent in range(100, 4, -5):
        outcome = runs.execute_enabled(train, device, ratio=percent / 100, plain=plain)
        if outcome.error is None:
            assert plain.differences(outcome) == [], percent
            worked.append(percent)
        else:
            assert outcome.error.startswith("OutOfMemoryError"), outcome.error
    assert set(range(30, 101, 5)) <= set(worked), worked


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_graph_survives_an_error_in_backward(remat, device):
    model = models.deep_mlp(8, 128).to(device)
    x = torch.randn(512, 128, device=device)
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    _testing.evict_all()
    remat.set_budget(_fits(remat, device, 16), device=device)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward(retain_graph=True)
    remat.set_budget("1GiB", device=device)
    model.zero_grad()
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected):
        assert torch.equal(parameter.grad, gradient)
