"""Ops with several outputs and ops that take lists of tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.cuda.remat import _testing

import models
import runs


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.split(5, 1),
        lambda x: x.chunk(3, 0),
        lambda x: x.unbind(0)[2:5],
        lambda x: torch.unsafe_split(x, 8, 1),
        lambda x: x.topk(3, 1),
        lambda x: x.sort(1),
        lambda x: x.max(1),
        lambda x: x.kthvalue(2, 1),
        lambda x: torch.var_mean(x, 1),
        lambda x: torch.std_mean(x, 0),
        lambda x: torch.aminmax(x.detach(), dim=1),
        lambda x: torch.linalg.svd(x[:, :16], full_matrices=False)[1],
        lambda x: torch.linalg.qr(x),
        lambda x: torch.linalg.slogdet(x[:, :16] + 4 * torch.eye(16)),
        lambda x: torch.linalg.eigh(x[:, :16] + x[:, :16].t())[0],
        lambda x: torch.cummax(x, 1),
        lambda x: torch.nn.functional.max_pool1d(x, 4, return_indices=True),
        lambda x: torch.frexp(x),
        lambda x: torch.unique(
            x.detach().round(), return_inverse=True, return_counts=True
        ),
        lambda x: torch.nn.functional.layer_norm(x, (64,)),
        lambda x: torch.native_layer_norm(x, (64,), None, None, 1e-5),
        lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
        pytest.param(
            lambda x: torch.histogram(x.detach(), 5),
            marks=pytest.mark.cpu_only("has no kernel on CUDA"),
        ),
        lambda x: torch.broadcast_tensors(x, x[:1]),
    ],
)
def test_op_with_several_outputs(run_twice, device, op):
    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        outs = op(x.tanh())
        outs = [outs] if isinstance(outs, torch.Tensor) else list(outs)
        late = [o.to(torch.float32).sin() for o in outs]
        loss = sum(o.sum() for o in late)
        if loss.requires_grad:
            loss.backward()
        return {"outs": outs, "late": late, "x": x.grad}

    run_twice(step)


@pytest.mark.parametrize(
    "op",
    [
        torch.sort,
        torch.max,
        pytest.param(
            torch.mode, marks=pytest.mark.cpu_only("not on the emulated device")
        ),
        torch.kthvalue,
        torch.topk,
        torch.cummax,
    ],
)
def test_several_out_arguments_come_back(remat, device, op):
    arguments = (2, 1) if op in (torch.kthvalue, torch.topk) else (1,)
    for _ in range(50):  # a broken heap does not show at once
        x = torch.randn(16, 64, device=device)
        values, indices = (t.clone() for t in op(x, *arguments))
        out = torch.zeros_like(values), torch.zeros_like(indices)
        op(x, *arguments, out=out)
        assert _testing.evict(out[0])
        assert _testing.evict(out[1])
        assert torch.equal(out[0], values)
        assert torch.equal(out[1], indices)


def test_op_with_several_outputs_is_replayed_once(remat, device):
    x = torch.randn(64, 64, device=device)
    values, indices = x.sort(1)
    expected = values.clone(), indices.clone()
    assert _testing.evict(values)
    assert _testing.evict(indices)
    remat.reset_stats(device)
    assert torch.equal(values, expected[0])
    assert torch.equal(indices, expected[1])
    assert remat.stats(device).replays == 1


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_output_that_is_still_resident_is_not_made_twice(remat, device):
    x = torch.randn(256, 256, device=device)
    values, indices = x.sort(1)
    expected = values.clone(), indices.clone()
    assert _testing.evict(values)
    before = remat.memory_allocated(device)
    assert torch.equal(values, expected[0])
    after = remat.memory_allocated(device)
    assert after - before == runs.about(values.nbytes)
    assert torch.equal(indices, expected[1])


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_output_that_nobody_kept_is_released_after_the_replay(remat, device):
    x = torch.randn(256, 256, device=device)
    values = x.sort(1).values
    assert _testing.evict(values)
    before = remat.memory_allocated(device)
    values.sum()
    assert remat.memory_allocated(device) - before == runs.about(values.nbytes)


@pytest.mark.parametrize(
    "op",
    [
        lambda a, b, c: torch.stack([a, b, c]),
        lambda a, b, c: torch.cat([a, b, c], 1),
        lambda a, b, c: torch.cat([a] * 3 + [b]),
        lambda a, b, c: torch.hstack((a, b)),
        lambda a, b, c: torch.block_diag(a, b, c),
        lambda a, b, c: torch.einsum("ij,kj,kl->il", a, b, c),
        lambda a, b, c: torch.linalg.multi_dot([a, b.t(), c, a.t()]),
        lambda a, b, c: torch.cartesian_prod(a[0], b[0]),
        lambda a, b, c: a[torch.tensor([1, 2]), :],
        lambda a, b, c: a[:, torch.tensor([0, 0, 5])],
        lambda a, b, c: a.view(4, 4, 64)[:, torch.tensor([1, 0])],
        lambda a, b, c: a.view(4, 4, 64)[torch.tensor([0, 3]), :, torch.tensor([5, 6])],
        lambda a, b, c: a[b > 0],
        lambda a, b, c: torch.ops.aten.index_put(
            a, [None, torch.tensor([1])], c[:, :1]
        ),
        lambda a, b, c: torch.index_put(
            a, (torch.tensor([1, 1]),), c[:2], accumulate=True
        ),
        lambda a, b, c: torch.nn.utils.rnn.pad_sequence([a, b[:3], c[:7]]),
        lambda a, b, c: torch._foreach_add([a, b, c], 2.0)[1],
        lambda a, b, c: torch._foreach_mul([a, b], [b, c])[0],
        lambda a, b, c: torch.where(a > b, a, c),
        lambda a, b, c: torch.lerp(a, b, c.sigmoid()),
        lambda a, b, c: torch.dstack([a, b]),
    ],
)
def test_op_on_a_list_of_tensors(run_twice, device, op):
    def step():
        x = [torch.randn(16, 64, device=device, requires_grad=True) for _ in range(3)]
        out = op(*(t.tanh() for t in x))
        late = out.sin()
        late.sum().backward()
        return {"out": out, "late": late, "x": [t.grad for t in x]}

    run_twice(step)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers(run_twice, device, kind, bidirectional):
    def step():
        rnn = kind(16, 24, 2, dropout=0.2, bidirectional=bidirectional).to(device)
        x = torch.randn(9, 4, 16, device=device, requires_grad=True)
        y, hidden = rnn(x)
        y, _ = rnn(y[..., :16], hidden)
        y.square().sum().backward()
        return {"y": y, "h": hidden, "x": x.grad, **models.state(rnn)}

    run_twice(step)


@pytest.mark.explicit_device
def test_packed_sequences(run_twice, device):
    def step():
        rnn = nn.LSTM(16, 24, 2, batch_first=True).to(device)
        x = torch.randn(4, 9, 16, device=device, requires_grad=True)
        packed = nn.utils.rnn.pack_padded_sequence(
            x.tanh(), torch.tensor([9, 3, 5, 1]), batch_first=True, enforce_sorted=False
        )
        y, _ = nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)
        y.square().sum().backward()
        return {"y": y, "x": x.grad, **models.state(rnn)}

    run_twice(step)


def test_attention_and_transformer(run_twice, device):
    def step():
        net = models.transformer().to(device)
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        x = torch.randn(2, 12, 32, device=device, requires_grad=True)
        y = net(x, mask=mask, is_causal=True)
        y.square().sum().backward()
        return {"y": y, "x": x.grad, **models.state(net)}

    run_twice(step)


def test_scatter_gather_with_duplicate_indices(run_twice, device):
    def step():
        x = torch.randn(50, 16, device=device, requires_grad=True)
        to = torch.randint(0, 10, (200,))
        source = torch.randint(0, 50, (200,))
        messages = x.tanh()[source]
        zeros = torch.zeros(10, 16, device=device)
        total = zeros.index_add(0, to, messages)
        top = zeros.scatter_reduce(0, to[:, None].expand(-1, 16), messages, "amax")
        (total.square().sum() + top.sum()).backward()
        return {"total": total, "top": top, "x": x.grad}

    run_twice(step)
