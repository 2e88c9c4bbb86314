"""Forked children and DataLoader workers."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback

import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch.cuda.remat import _testing

import models
import runs

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="there is no fork on this system"
)


def _in_child(function) -> None:
    """Run in a forked child; fail on an exception, a crash or no end."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"


@pytest.mark.cpu_only("CUDA tensors do not go to forked children")
def test_forked_child_reads_and_computes(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    expected = y.clone()
    assert _testing.evict(y)

    def child():
        assert torch.equal(y, expected)
        loss = models.deep_mlp(3)(torch.randn(4, 64)).sum()
        # Where there is a GPU, autograd has threads, and upstream refuses to run it
        # in a forked child.
        if not torch.cuda.is_available():
            loss.backward()

    _in_child(child)
    assert not _testing.is_resident(y)
    assert torch.equal(y, expected)


def test_forked_child_may_disable(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    expected = y.clone()
    assert _testing.evict(y)

    def child():
        remat.disable()
        assert torch.equal(y, expected)

    _in_child(child)
    assert remat.is_enabled(device)


@pytest.mark.explicit_device
def test_forked_child_is_not_held_to_the_parents_use(remat, device):
    y = torch.randn(256, 256, device=device).tanh()
    remat.set_budget(remat.memory_allocated(device) + (1 << 20), device=device)

    def child():
        torch.zeros(1 << 24, dtype=torch.uint8)

    _in_child(child)
    assert y.shape == (256, 256)


@pytest.fixture
def hang_is_a_failure():
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.cpu_only("CUDA tensors do not go to forked children")
def test_fork_while_another_thread_replays_a_python_op(
    remat, device, hang_is_a_failure
):
    is_running, stop = threading.Event(), threading.Event()

    def slow(x):
        is_running.set()
        time.sleep(0.002)  # the interpreter goes to the other thread
        return x.sin()

    with torch.library._scoped_library("remat_fork", "FRAGMENT") as library:
        library.define("slow(Tensor x) -> Tensor")
        library.impl("slow", slow, "CompositeExplicitAutograd")
        y = torch.ops.remat_fork.slow(torch.randn(16, 64).tanh())
        expected = y.clone()
        wrong = []

        def replay():
            while not stop.is_set():
                _testing.evict(y)
                wrong.extend([] if torch.equal(y, expected) else [1])

        def child():
            assert torch.equal(y, expected)
            remat.enable("1GiB", device=device)
            assert torch.equal(torch.ops.remat_fork.slow(expected), expected.sin())

        thread = threading.Thread(target=replay)
        thread.start()
        try:
            for _ in range(10):
                is_running.clear()
                assert is_running.wait(60)
                _in_child(child)
        finally:
            stop.set()
            thread.join()
        assert not wrong


@pytest.mark.cpu_only("CUDA tensors do not go to forked children")
def test_fork_by_an_op_that_is_being_replayed(remat, device, hang_is_a_failure):
    x = torch.randn(16, 64).tanh()

    def forks(x):
        _in_child(lambda: x.sum().item())
        return x.sin()

    with torch.library._scoped_library("remat_fork", "FRAGMENT") as library:
        library.define("forks(Tensor x) -> Tensor")
        library.impl("forks", forks, "CompositeExplicitAutograd")
        y = torch.ops.remat_fork.forks(x)
        expected = x.sin()
        _testing.evict_all()
        assert torch.equal(y, expected)
        _testing.evict_all()
        remat.disable()
        assert torch.equal(y, expected)


class _Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(64, generator=generator).tanh(), torch.tensor(i)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.explicit_device
def test_data_loader_workers(run_twice, device, persistent):
    def step():
        model = models.deep_mlp(4).to(device)
        waiting = model(torch.randn(64, 64, device=device)).square().mean()
        loader = torch.utils.data.DataLoader(
            _Numbers(),
            batch_size=4,
            num_workers=2,
            multiprocessing_context="fork",
            persistent_workers=persistent,
        )
        losses, ids = [], []
        for x, i in loader:
            loss = model(x.to(device)).square().mean()
            loss.backward()
            losses.append(loss.detach())
            ids.append(i.clone())
        waiting.backward()
        return {"losses": losses, "ids": ids, **models.state(model)}

    run_twice(step)


@pytest.mark.cpu_only("the model is too small to be short of a GPU's segments")
def test_workers_started_while_the_planner_works(
    remat_off, device, monkeypatch, hang_is_a_failure
):
    monkeypatch.setenv("PYTORCH_REMAT_PLANNER_SHARE", "100%")

    def train():
        model = models.deep_mlp(10).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for _ in range(6):
            loader = torch.utils.data.DataLoader(
                _Numbers(),
                batch_size=4,
                num_workers=2,
                multiprocessing_context="fork",
            )
            for x, _i in loader:
                x = x.to(device).repeat(32, 1)
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return {"losses": losses, **models.state(model)}

    plain = runs.execute(train, device)
    budgeted = runs.execute_enabled(train, device, ratio=0.6, plain=plain)
    assert plain.differences(budgeted) == []
    assert budgeted.stats.evictions > 0


def _put(queue, event):
    queue.put(torch.arange(10.0).sin())
    event.wait(60)


@pytest.mark.cpu_only("CUDA tensors do not go to forked children")
def test_tensor_from_a_queue_is_a_leaf(remat, device):
    context = multiprocessing.get_context("fork")
    queue, event = context.Queue(), context.Event()
    process = context.Process(target=_put, args=(queue, event))
    process.start()
    received = queue.get(timeout=60)
    y = received * 2
    expected = y.clone()
    assert not _testing.evict(received)
    _testing.evict(y)
    assert torch.equal(y, expected)
    event.set()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.cpu_only("CUDA tensors do not go to forked children")
def test_tensor_sent_to_a_child_is_moved_to_shared_memory(remat, device):
    y = torch.randn(16, device=device).tanh()
    expected = y.clone()
    _testing.evict(y)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    queue.put(y)
    received = queue.get(timeout=60)
    assert torch.equal(received, expected)
    assert torch.equal(y, expected)
