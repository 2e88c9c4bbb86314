"""Several threads: each computes what it computes alone."""

from __future__ import annotations

import queue
import threading

import torch
from torch.cuda.remat import _testing

import models
import runs


def _in_threads(*functions):
    results: dict[int, object] = {}
    errors: list[BaseException] = []

    def work(index, function):
        try:
            results[index] = function()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(functions))]


def _training(device, index, batch=1024):
    """A model made now, trained later on data made now: no global random stream."""
    torch.manual_seed(index)
    model = models.deep_mlp(5).to(device)
    batches = [torch.randn(batch, 64, device=device) for _ in range(5)]
    return lambda: models.train(model, iter(batches).__next__, steps=4)


def test_two_threads_train_as_each_alone(run_twice, device):
    def both():
        functions = [_training(device, i) for i in (0, 1)]
        return _in_threads(*functions)

    alone = [runs.execute(_training(device, i), device) for i in (0, 1)]
    outcomes = run_twice(both, budgets=(0.7,))
    for i in (0, 1):
        prefix = "['results']"
        for name, expected in alone[i].results.items():
            if name.startswith(prefix):
                key = f"{prefix}[{i}]{name[len(prefix) :]}"
                found = {name: outcomes["chaos"].results[key]}
                assert not runs.snapshots.differences({name: expected}, found)


def test_backward_from_another_thread(run_twice, device):
    def step():
        model = models.deep_mlp(6).to(device)
        loss = model(torch.randn(64, 64, device=device)).square().mean()
        _in_threads(loss.backward)
        return models.state(model)

    run_twice(step, budgets=(0.7,))


def test_thread_started_after_enable_is_captured(remat, device):
    (y,) = _in_threads(lambda: torch.randn(16, 64, device=device).tanh())
    expected = y.clone()
    assert _testing.is_managed(y)
    assert _testing.evict(y)
    assert torch.equal(y, expected)


def test_thread_reads_what_another_thread_evicted(remat, device):
    y = torch.randn(64, 64, device=device).tanh()
    expected = y.clone()
    for _ in range(20):
        _testing.evict(y)
        for found in _in_threads(*[lambda: y.clone()] * 4):
            assert torch.equal(found, expected)


def test_threads_share_inputs_under_pressure(run_twice, device):
    def step():
        shared = torch.randn(128, 64, device=device).tanh()

        # Alive until all threads are done, so that the peak, and with it the budget,
        # does not depend on how much they overlap.
        kept = []

        def work(k):
            h = shared * k
            for _ in range(30):
                h = (h @ shared.t() @ shared).tanh()
                kept.append(h)
            return h

        return _in_threads(*[lambda k=k: work(k) for k in (1.0, 2.0, 3.0)])

    run_twice(step, budgets=(0.6,))


def test_tensors_die_in_another_thread(remat, device):
    before = remat.memory_allocated(device)
    box = [torch.randn(64, 64, device=device).tanh() for _ in range(20)]
    _testing.evict(box[0])
    _in_threads(box.clear)
    assert remat.memory_allocated(device) == before
    _testing.check_invariants()


def test_thread_started_before_enable_is_covered(remat_off, device):
    tasks, results = queue.Queue(), queue.Queue()

    def work():
        for task in iter(tasks.get, None):
            results.put(task())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        tasks.put(lambda: float(torch.ones(4, device=device).sum()))
        assert results.get(timeout=60) == 4  # it has run an op
        remat_off.enable(device=device)
        y = torch.randn(64, 64, device=device).exp()
        expected = y + 1
        assert _testing.evict(y)
        tasks.put(lambda: torch.equal(y + 1, expected))
        assert results.get(timeout=60)
    finally:
        tasks.put(None)
        worker.join()


def test_threads_that_update_shared_parameters_do_not_break_the_engine(
    remat, device, monkeypatch
):
    """Hogwild: what comes out depends on timing, with remat or without."""
    monkeypatch.setenv(runs.CHAOS, "1")
    remat.enable(device=device)
    model = models.deep_mlp(4).to(device)
    failures = []

    def train(seed):
        x = torch.randn(8, 64, device=device)
        try:
            for _ in range(30):
                gradients = torch.autograd.grad(
                    model(x).pow(2).mean(), list(model.parameters())
                )
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters(), gradients):
                        parameter.sub_(gradient, alpha=1e-3)
        except RuntimeError as error:
            # Plain autograd raises this, too, where a write comes in between.
            if "modified by an inplace operation" not in str(error):
                failures.append(error)

    workers = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures
