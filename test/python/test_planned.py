"""The default policy while it learns: the values stay what they are without it."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

import models
import runs

SHARE = "PYTORCH_REMAT_PLANNER_SHARE"


@pytest.fixture
def eager_planner(monkeypatch):
    """Plans come as soon as they can: within a few steps."""
    monkeypatch.setenv(SHARE, "100%")


def _batch(rows, device, width=64, on_cuda=64):
    # A CUDA device gives memory in pages of 2 MiB, of which a batch of the CPU's fills
    # none.
    return torch.randn(
        rows * (on_cuda if device == "cuda" else 1), width, device=device
    )


def _train(device, widths, steps):
    """Train one step for each width in turn, again and again."""
    model = models.deep_mlp(10, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        x = _batch(widths[step % len(widths)], device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": losses, **models.state(model)}


def _compare(device, train, ratio=0.5):
    plain = runs.execute(train, device)
    budgeted = runs.execute_enabled(train, device, ratio=ratio, plain=plain)
    assert plain.differences(budgeted) == []
    assert budgeted.stats.evictions > 0
    return budgeted


def test_planned_is_the_default(remat_off, device):
    remat_off.enable(device=device)
    assert "policy planned" in remat_off.summary(device)


@pytest.mark.parametrize(
    "widths",
    [[256], [256, 192], [256, 192, 224, 128], list(range(128, 320, 8))],
    ids=["same", "alternating", "four", "ever new"],
)
def test_values_and_budget_hold_whatever_repeats(device, eager_planner, widths):
    steps = max(24, len(widths))
    _compare(device, lambda: _train(device, widths, steps), ratio=0.7)


def test_values_hold_while_the_budget_changes(remat_off, device, eager_planner):
    def train():
        model = models.deep_mlp(10, 64).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for step in range(30):
            if remat_off.is_enabled(device) and step % 5 == 4:
                limit = remat_off.stats(device).budget_bytes
                remat_off.set_budget(
                    int(limit * (1.1 if step % 10 == 9 else 1 / 1.1)), device=device
                )
            optimizer.zero_grad()
            model(_batch(256, device)).square().mean().backward()
            optimizer.step()
        return models.state(model)

    plain = runs.execute(train, device)
    budgeted = runs.execute_enabled(train, device, ratio=0.7, plain=plain)
    budgeted = dataclasses.replace(budgeted, budget=None)  # it was not one
    assert plain.differences(budgeted) == []
    assert budgeted.stats.evictions > 0


def test_a_branch_that_is_taken_now_and_then(device, eager_planner):
    def train():
        model = models.deep_mlp(10, 64).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        losses = []
        for step in range(24):
            hidden = model[:8](_batch(256, device))
            if step % 3 == 2:
                hidden = hidden.sin() * hidden.cos()
            loss = model[8:](hidden).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return {"losses": losses, **models.state(model)}

    _compare(device, train)


def _heavy(device):
    """A model of many ops, whose search takes a while."""
    return nn.Sequential(
        *(
            layer
            for _ in range(150)
            for layer in (nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16))
        )
    ).to(device)


def _start_search(remat, device, share, monkeypatch):
    monkeypatch.setenv(SHARE, share)
    model = _heavy(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        # Its many values fill some pages together.
        model(_batch(256, device, 16, on_cuda=8)).square().mean().backward()
        optimizer.step()

    gc.collect()
    before = remat.memory_allocated(device)
    remat.reset_peak_memory_stats(device)
    step()
    peak = remat.max_memory_allocated(device)
    remat.enable(before + (peak - before) // 2, device=device)
    adopted = remat.stats(device).plans_adopted  # by then
    for _ in range(5):
        step()
    return step, adopted


def test_disable_ends_a_search(remat_off, device, monkeypatch):
    step, _ = _start_search(remat_off, device, "0.1%", monkeypatch)
    start = time.monotonic()
    remat_off.disable(device)
    assert time.monotonic() - start < 10
    step()
    remat_off.enable(device=device)
    step()


def test_a_search_outlives_the_block_it_began_in(remat_off, device, monkeypatch):
    step, before = _start_search(remat_off, device, "5%", monkeypatch)
    limit = remat_off.stats(device).budget_bytes
    remat_off.disable(device)
    # The planner's thread has the lowest priority: on a busy machine it gets little
    # time, and least of all beside steps of this one.
    deadline = time.monotonic() + 240
    while remat_off.stats(device).plans_adopted == before:
        with remat_off.budget(limit, device=device):
            step()
        while remat_off.stats(device).plan_search:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert time.monotonic() < deadline
    with remat_off.budget(limit, device=device):
        step()
        stats = remat_off.stats(device)
    assert stats.plans_tried > 1
    assert stats.planner_bytes > 0
    assert stats.iteration_kinds >= 1


def test_stats_say_when_a_plan_decides(remat_off, device, eager_planner):
    kinds = []
    losses = []

    def train():
        # Of shapes that no other test has made known.
        model = models.deep_mlp(9, 64).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(12):
            width = 203 if step == 11 else 251
            loss = model(_batch(width, device)).square().mean()
            kinds.append(remat_off.stats(device).plan_in_use)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            while remat_off.stats(device).plan_search:
                time.sleep(0.01)
        return {"losses": losses}

    plain = runs.execute(train, device)
    kinds.clear()
    runs.execute_enabled(train, device, ratio=0.6, plain=plain)
    assert kinds[0] is None
    assert kinds[10] is not None
    assert kinds[11] is None  # another shape, of which nothing is known


@pytest.mark.cpu_only("CUDA does not work in forked children")
def test_fork_during_a_search(remat_off, device, monkeypatch):
    step, _ = _start_search(remat_off, device, "1%", monkeypatch)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang is a failure
        try:
            step()
            remat_off.disable()
            step()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    step()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os.kill(os.getpid(), 15)"])
@pytest.mark.parametrize("share", ["0", "1%", "100%"])
def test_a_process_ends_during_a_search(device, end, share):
    expected = {"": 0, "sys.exit(3)": 3}.get(end, -15)
    script = f"""
        import os, sys, torch
        import torch.cuda.remat as remat
        torch.set_num_threads(1)
        layers = [torch.nn.Linear(16, 16) for _ in range(200)]
        model = torch.nn.Sequential(*layers).to({device!r})
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        def step():
            x = torch.randn(256, 16, device={device!r})
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        step()
        limit = remat.max_memory_allocated({device!r}) * 8 // 10
        remat.enable(limit, device={device!r})
        for _ in range(6):
            step()
        {end}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=dict(os.environ, **{SHARE: share, "PYTORCH_REMAT_SMALLEST": "1"}),
        timeout=120,
        check=False,
    )
    assert done.returncode == expected


@pytest.mark.parametrize("text", ["2", "-0.1", "ten", "101%", "nan"])
def test_share_that_is_none_is_refused(remat_off, device, monkeypatch, text):
    monkeypatch.setenv(SHARE, text)
    with pytest.raises(ValueError, match=SHARE):
        remat_off.enable(device=device)
    assert not remat_off.is_enabled(device)
