"""Views share the storage; sizes, strides, conjugation stay what they were."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda.remat import _testing

import models


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[3],
        lambda y: y[:, ::3],
        lambda y: y.t(),
        lambda y: y.view(4, 4, 64),
        lambda y: y.unfold(1, 8, 4),
        lambda y: y[:, :1].expand(16, 32),
        lambda y: y.as_strided((4, 5), (7, 2), 9),
        lambda y: y.diagonal(),
        lambda y: y.unsqueeze(1).movedim(0, 2),
        lambda y: y.detach(),
        lambda y: y.view(torch.int32),
        lambda y: y.real,
        lambda y: y.narrow(0, 2, 5),
        lambda y: y.swapaxes(0, 1)[5:7],
        lambda y: y.squeeze(),
        lambda y: y.flatten(),
        lambda y: y.broadcast_to(3, 16, 64),
    ],
)
def test_view_of_an_evicted_storage_reads_the_same(remat, device, view):
    y = torch.randn(16, 64, device=device).tanh()
    part = view(y)
    expected = part.clone()
    metadata = part.shape, part.stride(), part.storage_offset(), part.dtype
    assert _testing.evict(part)
    assert not _testing.is_resident(y)
    assert (part.shape, part.stride(), part.storage_offset(), part.dtype) == metadata
    assert not _testing.is_resident(y)
    assert torch.equal(part, expected)
    assert _testing.is_resident(y)


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[3],
        lambda y: y.t(),
        lambda y: y.as_strided((4, 5), (7, 2), 9),
        lambda y: y[:, :1].expand(16, 32),
        lambda y: y.unfold(1, 8, 4),
    ],
)
def test_view_taken_of_an_evicted_storage_causes_no_replay(remat, device, view):
    y = torch.randn(16, 64, device=device).tanh()
    expected = view(y).clone()
    assert _testing.evict(y)
    part = view(y)
    assert not _testing.is_resident(y)
    assert torch.equal(part, expected)


def test_metadata_never_causes_a_replay(remat, device):
    y = torch.randn(16, 64, device=device).tanh()
    assert _testing.evict(y)
    y.shape, y.stride(), y.dtype, y.device, y.numel(), y.dim(), y.layout
    y.is_contiguous(), y.requires_grad, y.is_leaf, y.element_size(), len(y)
    y.storage_offset(), y.nbytes, y._version, y.is_complex(), y.itemsize
    y.untyped_storage().nbytes(), y.untyped_storage().size()
    assert not _testing.is_resident(y)
    assert remat.stats(device).replays == 0


def test_conj_and_neg_bits_are_kept(run_twice, device):
    def step():
        x = torch.randn(16, 16, dtype=torch.cfloat, device=device, requires_grad=True)
        y = x.sin()
        conjugate = y.conj()
        negative = conjugate.imag
        assert conjugate.is_conj()
        assert negative.is_neg()
        z = (conjugate @ y).abs() + negative.sin() + torch.view_as_real(y)[..., 0]
        z.sum().backward()
        return {"x": x.grad, "c": conjugate * 1, "n": negative + 0, "z": z}

    run_twice(step)


def test_conj_input_of_a_record_replays_as_conj(remat, device):
    y = torch.randn(16, 16, dtype=torch.cfloat, device=device).sin()
    z = y.conj() @ y.mH
    n = y.conj().imag.exp()
    expected = z.clone(), n.clone()
    assert _testing.evict(z)
    assert _testing.evict(n)
    assert _testing.evict(y)
    assert torch.equal(z, expected[0])
    assert torch.equal(n, expected[1])


def test_channels_last_strides_come_back(run_twice, device):
    def step():
        net = models.conv_net().to(device)
        x = torch.randn(4, 3, 12, 12, device=device)
        net(x)
        net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        kept = []
        h = x
        for layer in net:
            h = layer(h)
            kept.append(h)
        h.sum().backward()
        strides = [k.stride() for k in kept]
        return {"kept": kept, "strides": strides, "x": x.grad, **models.state(net)}

    run_twice(step)


def test_replay_gets_inputs_with_the_strides_of_then(remat, device):
    x = torch.randn(8, 6, 5, device=device).sin()
    mixed = x.permute(2, 0, 1)
    y = mixed.contiguous().sum(0)
    z = mixed.exp()  # keeps the permuted strides
    expected = y.clone(), z.clone()
    strides = z.stride()
    for t in (y, z, x):
        assert _testing.evict(t)
    assert torch.equal(y, expected[0])
    assert torch.equal(z, expected[1])
    assert z.stride() == strides


def test_as_strided_overlapping_and_expanded_gradients(run_twice, device):
    def step():
        x = torch.randn(64, device=device, requires_grad=True)
        y = x.tanh()
        windows = y.as_strided((15, 8), (4, 1))
        tall = y[:1].expand(32)
        loss = (windows.square().sum(1) * torch.arange(15.0)).sum() + tall.sum()
        loss.backward()
        return {"x": x.grad, "w": windows, "t": tall}

    run_twice(step)


def test_unfold_fold_and_pixel_shuffle(run_twice, device):
    def step():
        x = torch.randn(2, 4, 12, 12, device=device, requires_grad=True)
        y = F.unfold(x.tanh(), 3, padding=1)
        z = F.fold(y.sin(), (12, 12), 3, padding=1)
        w = F.pixel_shuffle(z, 2)
        w.square().sum().backward()
        return {"x": x.grad, "w": w}

    run_twice(step)


def test_views_of_views_of_parameters_stay_leaves(remat, device):
    weight = nn.Parameter(torch.ones(8, 8))
    weight.sum()  # an op has met it as a parameter
    part = weight.view(64)[3:9]
    assert not _testing.evict(part)
    assert torch.equal(part, torch.ones(6))


def test_empty_and_zero_sized_tensors(run_twice, device):
    def step():
        x = torch.randn(4, 0, 3, device=device, requires_grad=True)
        y = x.tanh().sum(1)
        z = torch.cat([y, torch.zeros(0, 3, device=device)])
        z.sum().backward()
        return {"x": x.grad, "y": y, "z": z, "s": torch.tensor(3.0).sin()}

    run_twice(step, expect_replays=False)
