"""Training on the emulated device: layers, optimizers, mixed precision, streams."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

OPTIMIZERS = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.project(x).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (2, 8)).transpose(1, 2) for p in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2).mean(1)


class _Last(nn.Module):
    def forward(self, x: tuple[torch.Tensor, object]) -> torch.Tensor:
        return x[0][:, -1]


def _conv_net() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 8, 2, 2),
        nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return model, torch.randn(8, 3, 8, 8)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), _Attention(), nn.Linear(16, 4)
    )
    return model, torch.randn(8, 6, 16)


def _recurrent(kind: type[nn.RNNBase]) -> tuple[nn.Module, torch.Tensor]:
    layer = kind(16, 8, num_layers=2, bidirectional=True, batch_first=True)
    return nn.Sequential(layer, _Last(), nn.Linear(16, 4)), torch.randn(8, 6, 16)


def _train(
    model: nn.Module,
    x: torch.Tensor,
    device: str,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **options: object,
) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model).to(device)
    target = torch.arange(len(x), device=device) % 4
    steps = optimizer(model.parameters(), lr=0.05, **options)
    for _ in range(3):
        steps.zero_grad()
        F.cross_entropy(model(x.to(device)), target).backward()
        steps.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    "made",
    [
        _conv_net,
        _transformer,
        lambda: _recurrent(nn.LSTM),
        lambda: _recurrent(nn.GRU),
        lambda: _recurrent(nn.RNN),
    ],
    ids=["conv", "transformer", "lstm", "gru", "rnn"],
)
def test_training_gives_what_the_cpu_gives(made):
    torch.manual_seed(0)
    model, x = made()
    torch.testing.assert_close(_train(model, x, "cuda"), _train(model, x, "cpu"))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_every_form_of_an_optimizer_gives_the_same(kind, options):
    torch.manual_seed(0)
    # Without a parameter whose gradient is zero but for rounding, which Adam blows up.
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    x = torch.randn(8, 16)
    plain = _train(model, x, "cpu", kind, foreach=False)
    found = _train(model, x, "cuda", kind, **options)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


def test_channels_last_is_kept():
    layer = nn.Conv2d(3, 8, 3).to("cuda", memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


def test_packed_sequences_give_what_the_cpu_gives():
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 8), torch.randn(5, 3, 4)
    lengths = torch.tensor([5, 3, 2])

    def run(device: str) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x.to(device), lengths)
        out, _ = copy.deepcopy(layer).to(device)(packed)
        return nn.utils.rnn.pad_packed_sequence(out)[0].cpu()

    torch.testing.assert_close(run("cuda"), run("cpu"))


def test_dropout_between_recurrent_layers_is_the_same_in_backward():
    torch.manual_seed(0)
    layer = nn.LSTM(4, 64, num_layers=2, dropout=0.5).cuda()
    x = torch.randn(1, 1, 4, device="cuda")
    out, _ = layer(x)
    again, _ = layer(x)
    assert not torch.equal(out, again)
    # What was dropped on the way to the second layer has no gradient there.
    out.sum().backward()
    columns = layer.weight_ih_l1.grad.abs().sum(0)
    assert 0 < (columns == 0).sum() < 64


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_cells_give_what_the_cpu_gives(cell):
    torch.manual_seed(0)
    layer, x = cell(4, 8), torch.randn(3, 4)

    def run(device: str) -> list[torch.Tensor]:
        moved = copy.deepcopy(layer).to(device)
        out = moved(x.to(device))
        out = out[0] + out[1] if isinstance(out, tuple) else out
        out.square().sum().backward()
        return [out.cpu(), *(p.grad.cpu() for p in moved.parameters())]

    for found, expected in zip(run("cuda"), run("cpu"), strict=True):
        torch.testing.assert_close(found, expected)


def test_mixed_precision_skips_a_step_that_overflows():
    torch.manual_seed(0)
    layer = nn.Linear(8, 4).cuda()
    steps = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    x = torch.randn(16, 8, device="cuda")
    target = torch.arange(16, device="cuda") % 4

    def step(spoil: bool) -> float:
        steps.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = layer(x)
            assert out.dtype == torch.float16
            loss = F.cross_entropy(out, target)
        scaler.scale(loss).backward()
        if spoil:
            layer.weight.grad[0, 0] = float("inf")
        scaler.step(steps)
        scaler.update()
        return loss.item()

    first = step(False)
    before = layer.weight.detach().clone()
    step(True)
    assert torch.equal(layer.weight, before)
    assert scaler.get_scale() == 32.0
    losses = [step(False) for _ in range(10)]
    assert losses[-1] < first / 2


def test_a_pinned_copy_is_there_once_waited_for():
    host = torch.arange(1000.0).pin_memory()
    assert host.is_pinned()
    back = torch.empty(1000, pin_memory=True)
    back.copy_(host.cuda(non_blocking=True) * 2, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, host * 2)


needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="with_env.sh --devices 2"
)


@needs_two
def test_a_model_may_span_two_devices():
    torch.manual_seed(0)
    first, last, x = nn.Linear(8, 8), nn.Linear(8, 4), torch.randn(4, 8)
    expected = last(first(x).relu())
    found = last.to("cuda:1")(first.to("cuda:0")(x.cuda()).relu().to("cuda:1"))
    torch.testing.assert_close(found.cpu(), expected)
    found.sum().backward()
    assert first.weight.grad.device == torch.device("cuda:0")
    assert first.weight.grad.abs().sum().item() > 0


@needs_two
def test_a_copy_to_the_other_device_is_ordered():
    x = torch.arange(8.0, device="cuda:0")
    y = (x + 1).to("cuda:1") * 2
    assert y.device == torch.device("cuda:1")
    assert y.tolist() == [2 * (i + 1) for i in range(8)]
    with pytest.raises(RuntimeError, match="same device"):
        x + y
