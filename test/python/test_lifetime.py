"""What dies, dies now; what is kept does not grow."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.cuda.remat import _testing

import models
import runs


def _resident_set_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_dropped_tensor_gives_its_memory_back_now(remat, device):
    torch.randn(256, 256, device=device).sin()  # on a GPU, reserves memory
    before = remat.memory_allocated(device)
    y = torch.randn(256, 256, device=device).tanh()
    z = y.sin()
    del y, z
    assert remat.memory_allocated(device) == before


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_dropped_graph_gives_its_memory_back_now(remat, device):
    model = models.deep_mlp(6).to(device)
    x = torch.randn(64, 64, device=device)
    before = remat.memory_allocated(device)
    storages = remat.stats(device).storages
    loss = model(x).square().mean()
    assert remat.memory_allocated(device) > before
    del loss
    assert remat.memory_allocated(device) == before
    assert remat.stats(device).storages == storages


def test_records_go_with_the_last_value_that_needs_them(remat, device):
    x = torch.randn(64, 64, device=device)
    records = remat.stats(device).op_records
    y = x.tanh().sin().exp().cos()
    assert remat.stats(device).op_records > records
    del y
    assert remat.stats(device).op_records == records


def test_evicted_tensor_dies_like_any_other(remat, device):
    y = torch.randn(64, 64, device=device).tanh()
    z = y.sin()
    reference = weakref.ref(y)
    _testing.evict_all()
    storages = remat.stats(device).storages
    del y
    assert reference() is None
    z.sum()
    del z
    assert remat.stats(device).storages < storages


def test_weak_references_die_at_the_usual_time(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        h, references = torch.randn(16, 64, device=device), []
        for layer in model:
            h = layer(h)
            references.append(weakref.ref(h))
        alive = [r() is not None for r in references]
        h.sum().backward()
        after = [r() is not None for r in references]
        del h
        return {
            "alive": alive,
            "after": after,
            "end": [r() is None for r in references],
        }

    run_twice(step)


def test_reference_cycles_are_collected(remat, device):
    x = torch.randn(64, 64, device=device)
    before = remat.memory_allocated(device)

    class Holder:
        pass

    for _ in range(3):
        holder = Holder()
        holder.me = holder
        holder.y = x.tanh().sin()
        _testing.evict(holder.y)
    del holder
    gc.collect()
    assert remat.memory_allocated(device) == before


def test_input_that_the_user_dropped_is_kept_only_as_long_as_needed(remat, device):
    before = remat.memory_allocated(device)
    x = torch.randn(256, 256, device=device).tanh()
    y = x.sin()
    expected = y.clone()
    del x
    assert _testing.evict(y)
    assert torch.equal(y, expected)
    del y, expected
    assert remat.memory_allocated(device) == before


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_values_kept_only_by_records_do_not_outlive_the_plain_run(remat, device):
    x = torch.randn(256, 256, device=device)
    before = remat.memory_allocated(device)
    y = x.tanh().sin().exp()  # the intermediates are nobody's
    assert remat.memory_allocated(device) == runs.about(before + y.nbytes)


def test_old_gradients_go_one_by_one_as_evicted_momentum_comes_back(remat, device):
    parameters = [torch.randn(256, 256, device=device) for _ in range(8)]
    for parameter in parameters:
        parameter.requires_grad_()
    size = parameters[0].nbytes
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True)
    memory = remat if device == "cpu" else torch.cuda

    def backward():
        for parameter in parameters:
            parameter.square().sum().backward()

    backward()
    optimizer.step()
    momentum = [optimizer.state[p]["momentum_buffer"] for p in parameters]
    # On a GPU gradients are known as such, and what copies them is not evicted.
    is_evicted = device == "cpu"
    assert [_testing.evict(buffer) for buffer in momentum] == [is_evicted] * 8
    optimizer.zero_grad()
    assert remat.stats(device).held_bytes == is_evicted * 8 * size
    backward()
    memory.reset_peak_memory_stats(device)
    before = memory.memory_allocated(device)
    optimizer.step()  # reads all of the momentum at once
    assert memory.max_memory_allocated(device) - before < 2 * size
    assert remat.stats(device).held_bytes == 0


def _flat(remat, device, step, steps, warm):
    """Run ``step``; returns the growth of records, storages and resident bytes."""
    for _ in range(warm):
        step()
    gc.collect()
    first = remat.stats(device)
    resident = _resident_set_bytes()
    for _ in range(steps - warm):
        step()
    gc.collect()
    last = remat.stats(device)
    return {
        "op_records": last.op_records - first.op_records,
        "storages": last.storages - first.storages,
        "bytes": last.bytes_now - first.bytes_now,
        "rss": _resident_set_bytes() - resident,
    }


def _assert_flat(growth):
    assert growth["op_records"] <= 200, growth
    assert growth["storages"] <= 200, growth
    assert growth["bytes"] <= 1 << 20, growth
    assert growth["rss"] <= 8 << 20, growth


@pytest.mark.slow
def test_momentum_optimizer_keeps_records_and_memory_flat_over_2000_steps(
    remat, device
):
    model = models.deep_mlp(3, 32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        loss = model(torch.randn(8, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    _assert_flat(_flat(remat, device, step, 2000, 200))


@pytest.mark.slow
@pytest.mark.parametrize("carry", ["no_grad", "detach"])
def test_recurrent_state_keeps_records_and_memory_flat_over_2000_steps(
    remat, device, carry
):
    cell = torch.nn.GRUCell(16, 32).to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01, momentum=0.9)
    state = [torch.zeros(4, 32, device=device)]

    def step():
        x = torch.randn(4, 16, device=device)
        if carry == "no_grad":
            with torch.no_grad():
                state[0] = cell(x, state[0])
            return
        loss = cell(x, state[0].detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            state[0] = cell(x, state[0]).detach()

    _assert_flat(_flat(remat, device, step, 2000, 200))


@pytest.mark.slow
def test_running_sums_and_averages_keep_records_flat(remat, device):
    model = models.deep_mlp(1, 32).to(device)
    total = torch.zeros((), device=device)
    average = [p.detach().clone() for p in model.parameters()]
    history = torch.zeros(100, device=device)
    count = [0]

    def step():
        nonlocal total
        loss = model(torch.ones(8, 32, device=device)).square().mean()
        total = total + loss.detach()
        history[count[0] % 100] = loss.detach()
        count[0] += 1
        for mean, parameter in zip(average, model.parameters()):
            mean.mul_(0.99).add_(parameter.detach(), alpha=0.01)

    _assert_flat(_flat(remat, device, step, 1000, 100))


@pytest.mark.slow
def test_recurrent_training_over_many_steps_keeps_its_values(run_twice, device):
    def step():
        cell = torch.nn.GRUCell(8, 16).to(device)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.1, momentum=0.9)
        state = torch.zeros(4, 16, device=device)
        losses = []
        for i in range(60):
            state = cell(torch.randn(4, 8, device=device), state)
            if i % 5 == 4:
                loss = state.square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                state = state.detach()
                losses.append(loss.detach())
        return {"losses": losses, "state": state, **models.state(cell)}

    run_twice(step)


def test_thousands_of_small_tensors(run_twice, device):
    def step():
        x = torch.randn(200, device=device, requires_grad=True)
        parts = [v.sin() for v in x.unbind()]
        parts = [p * p for p in parts]
        torch.stack(parts).sum().backward()
        return {"x": x.grad}

    run_twice(step)


def test_enable_and_disable_many_times_leaks_nothing(remat_off, device):
    def once():
        remat_off.enable(device=device)
        y = torch.randn(64, 64, device=device).tanh()
        _testing.evict(y)
        remat_off.disable()
        return y.sum()

    for _ in range(5):
        once()
    before = remat_off.memory_allocated(device)
    for _ in range(100):
        once()
    assert remat_off.memory_allocated(device) == before


def test_old_graph_over_a_disable_and_enable(remat_off, device):
    remat_off.enable(device=device)
    y = torch.randn(64, 64, device=device).tanh()
    expected = y.clone()
    remat_off.disable()
    remat_off.enable(device=device)
    z = y.sin()
    _testing.evict(y)
    _testing.evict(z)
    assert torch.equal(z, expected.sin())
    assert torch.equal(y, expected)
