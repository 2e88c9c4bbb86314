"""Accesses outside the dispatcher: pointers that are handed out, and their writes."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.cuda.remat import _testing

import models


def _evicted(device):
    y = torch.randn(16, 64, device=device).tanh()
    expected = np.array(y.clone().numpy())
    assert _testing.evict(y)
    return y, expected


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y.numpy(),
        lambda y: np.asarray(y),
        lambda y: y.tolist(),
        lambda y: [[v.item() for v in row] for row in y],
        lambda y: torch.from_dlpack(y).numpy(),
        lambda y: np.from_dlpack(y),
        lambda y: y.untyped_storage().tolist(),
        lambda y: y.cpu().detach().numpy(),
        lambda y: copy.deepcopy(y).numpy(),
        lambda y: copy.copy(y).numpy(),
        lambda y: pickle.loads(pickle.dumps(y)).numpy(),
        lambda y: y.clone().share_memory_().numpy(),
        lambda y: y.share_memory_().numpy(),
        lambda y: y.storage().tolist(),
        lambda y: np.frombuffer(ctypes.string_at(y.data_ptr(), y.nbytes), np.float32),
        lambda y: memoryview(y.numpy()).tolist(),
        lambda y: [float(v) for v in y.flatten()],
        lambda y: list(y.untyped_storage().clone()),
    ],
)
@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_evicted_tensor_reads_right(remat, device, read):
    y, expected = _evicted(device)
    found = np.array(read(y))
    if found.dtype != np.float32 and found.size == expected.nbytes:
        found = found.astype(np.uint8).view(np.float32)
    assert np.array_equal(found.astype(np.float32).reshape(expected.shape), expected)


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_saved_and_loaded_file_holds_the_value(remat, device):
    y, expected = _evicted(device)
    file = io.BytesIO()
    torch.save({"y": y, "view": y[3:5]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert np.array_equal(loaded["y"].numpy(), expected)
    assert np.array_equal(loaded["view"].numpy(), expected[3:5])


def test_repr_and_format_show_the_value(remat, device):
    y = torch.full((2, 2), 0.5, device=device) + 1
    assert _testing.evict(y)
    assert "1.5" in repr(y)
    assert _testing.evict(y)
    assert f"{y[0, 0]:.2f}" == "1.50"


def test_storage_indexing_reads_and_writes(remat, device):
    y = torch.arange(4, dtype=torch.uint8, device=device) + 1
    assert _testing.evict(y)
    assert y.untyped_storage()[2] == 3
    assert _testing.evict(y) or _testing.is_resident(y)
    y.untyped_storage()[2] = 77
    _testing.evict(y)
    assert y.tolist() == [1, 2, 77, 4]


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_pointer_handed_out_makes_the_storage_escaped(remat, device):
    y, expected = _evicted(device)
    address = y.data_ptr()
    assert remat.stats(device).faults >= 1
    assert remat.stats(device).escaped_bytes >= y.nbytes
    assert not _testing.evict(y)
    _testing.evict_all()
    assert y.data_ptr() == address
    found = np.frombuffer(ctypes.string_at(address, y.nbytes), np.float32)
    assert np.array_equal(found.reshape(expected.shape), expected)


def test_pointer_of_a_resident_storage_escapes_too(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    address = y.data_ptr()
    ctypes.memset(address, 0, 4)
    _testing.evict_all()
    assert y.data_ptr() == address
    assert float(y[0, 0]) == 0.0


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_numpy_view_written_later_is_seen(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    view = y.numpy()
    z = y.sin()
    view[3] = 0.25
    _testing.evict_all()
    assert torch.equal(y[3], torch.full((64,), 0.25))
    assert np.shares_memory(view, y.numpy())
    assert not torch.equal(z[3], torch.full((64,), 0.25).sin())


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_value_computed_before_a_numpy_write_keeps_its_value(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    z = y.sin()
    expected = z.clone()
    view = y.numpy()
    _testing.evict(z)
    view[:] = 0
    assert torch.equal(z, expected)


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_numpy_writes_reach_backward(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        h, kept = torch.randn(16, 64, device=device), []
        for layer in model:
            h = layer(h)
            kept.append(h)
        views = [k.detach().numpy() for k in kept[1:5]]
        loss = h.square().mean()
        views[0][:, :8] = 0.25
        views[2] *= 0.5
        loss.backward()
        return {"kept": kept, **models.state(model)}

    run_twice(step)


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_numpy_batch_overwritten_between_forward_and_backward(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        buffer = np.zeros((16, 64), np.float32)
        losses = []
        for i in range(3):
            buffer[:] = np.sin(np.arange(16 * 64).reshape(16, 64) * (i + 1))
            x = torch.from_numpy(buffer)
            # What backward needs of the batch itself is a copy; the rest of the
            # graph was computed from the batch as it was.
            losses.append(model(x.clone()).square().mean())
        buffer[:] = np.nan
        sum(losses).backward()
        return {"losses": losses, **models.state(model)}

    run_twice(step)


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_numpy_batch_saved_by_autograd_is_read_as_it_is(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        buffer = np.ones((16, 64), np.float32)
        loss = model(torch.from_numpy(buffer)).square().mean()
        buffer[:] = 2  # the first layer's weight gradient sees this, as in eager
        loss.backward()
        return models.state(model)

    run_twice(step)


def test_frombuffer_and_external_memory_are_leaves(remat, device):
    raw = bytearray(64)
    x = torch.frombuffer(raw, dtype=torch.float32)
    assert not _testing.evict(x)
    y = x + 1
    expected = y.clone()
    _testing.evict(y)
    raw[:4] = b"\x00\x00\x80\x3f"
    assert float(x[0]) == 1.0
    del expected


def test_dlpack_round_trip_shares_memory(run_twice, device):
    def step():
        y = torch.randn(16, 64, device=device).tanh()
        other = torch.from_dlpack(y)
        early = y.sin()
        other.mul_(2)
        return {"y": y, "other": other, "early": early, "late": y.cos()}

    run_twice(step)


@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_value_computed_before_a_write_through_a_capsule_keeps_its_value(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    alias = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y))
    z = y.sin()
    expected = torch.tensor(z.tolist())
    alias[:] = 0
    _testing.evict_all()
    assert torch.equal(z, expected)
    assert int(y.count_nonzero()) == 0


@pytest.mark.explicit_device
def test_evicted_generator_state_is_restored(run_twice, device):
    def step():
        generator = torch.Generator(device=device)
        states = torch.get_rng_state().clone(), generator.get_state().clone()
        first = torch.rand(8), torch.rand(8, generator=generator, device=device)
        torch.set_rng_state(states[0])
        generator.set_state(states[1])
        if device != "cpu":
            torch.cuda.set_rng_state(torch.cuda.get_rng_state().clone())
        second = torch.rand(8), torch.rand(8, generator=generator, device=device)
        return {"first": first, "second": second}

    run_twice(step, expect_replays=False)


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.fill_(1),
        lambda s: s.copy_(torch.ones(s.nbytes(), dtype=torch.uint8).untyped_storage()),
        lambda s: s.__setitem__(3, 1),
        lambda s: s.resize_(2 * s.nbytes()),
        lambda s: s.byteswap(torch.float32),
    ],
    ids=["fill", "copy", "set", "resize", "byteswap"],
)
@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_write_through_a_storage_leaves_no_pin(remat, device, write):
    x = torch.randn(16, 64, device=device)
    before = remat.stats(device)
    y = x.tanh()
    write(y.untyped_storage())
    z = y.sin()
    assert remat.stats(device).pinned_bytes == 0
    del y, z
    after = remat.stats(device)
    assert after.storages == before.storages
    assert after.op_records == before.op_records
    assert after.held_bytes == 0


def test_shared_memory_activation(run_twice, device):
    def step():
        model = models.deep_mlp(4).to(device)
        h = model[:4](torch.randn(16, 64, device=device))
        h.detach().share_memory_()
        loss = model[4:](h).square().mean()
        loss.backward()
        return {"shared": h.is_shared(), **models.state(model)}

    run_twice(step)


def test_deepcopy_of_a_model_in_training(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        models.train(model, lambda: torch.randn(16, 64, device=device), steps=1)
        twin = copy.deepcopy(model)
        x = torch.randn(16, 64, device=device)
        model(x).sum().backward()
        twin(x.sin()).sum().backward()
        return {"model": models.state(model), "twin": models.state(twin)}

    run_twice(step)


def test_state_dict_round_trip(run_twice, device):
    def step():
        model = models.deep_mlp(3).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(16, 64, device=device)).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        weights, moments = torch.load(file)
        twin = models.deep_mlp(3).to(device)
        twin.load_state_dict(weights)
        other = torch.optim.Adam(twin.parameters())
        other.load_state_dict(moments)
        twin(torch.ones(16, 64, device=device)).sum().backward()
        other.step()
        return {"twin": models.state(twin), "moments": other.state_dict()["state"]}

    run_twice(step)


def test_item_and_bool_and_python_numbers(remat, device):
    y = torch.full((1,), 2.0, device=device) + 1
    for read, expected in (
        (float, 3.0),
        (int, 3),
        (bool, True),
        (torch.Tensor.item, 3.0),
    ):
        _testing.evict(y)
        assert read(y) == expected


def test_hash_id_and_identity_survive_eviction(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    table = {y: 1}
    assert _testing.evict(y)
    assert table[y] == 1
    assert y is next(iter(table))


def test_read_that_cannot_be_seen_is_explained():
    code = (
        "import ctypes, torch, torch.cuda.remat as remat\n"
        "remat.enable(device='cpu')\n"
        "ctypes.string_at(remat._C.evicted_address(), 1)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    )
    assert run.returncode == -signal.SIGSEGV
    assert "remat: evicted bytes were read" in run.stderr
