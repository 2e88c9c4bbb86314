"""What people train with on GPUs, with everything evictable evicted after each op."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.cuda.remat import _testing

import models
import runs

pytestmark = runs.needs_gpu


def _check(step, **options):
    runs.run_twice(step, "cuda", **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_with_scaler(dtype):
    def step():
        net = models.deep_mlp(4).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        losses = []
        for _ in range(3):
            x = torch.randn(16, 64, device="cuda")
            with torch.autocast("cuda", dtype=dtype):
                loss = net(x).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return {"losses": losses, "scale": scaler.get_scale(), **models.state(net)}

    _check(step)


@pytest.mark.parametrize("kind", ["fused", "foreach", "capturable"])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_optimizers(optimizer, kind):
    def step():
        return models.train(
            models.deep_mlp(3).cuda(),
            lambda: torch.randn(16, 64, device="cuda"),
            optimizer=optimizer,
            **{kind: True},
        )

    _check(step)


def test_convolutions_batch_norm_and_dropout():
    def step():
        net = models.conv_net().cuda()
        return models.train(net, lambda: torch.randn(4, 3, 8, 8, device="cuda"))

    _check(step)


def test_transformer():
    def step():
        net = models.transformer().cuda()
        return models.train(net, lambda: torch.randn(4, 6, 32, device="cuda"))

    _check(step)


def test_pinned_batches_copied_without_blocking():
    def step():
        net = models.deep_mlp(3).cuda()
        copies = torch.cuda.Stream()
        losses = []
        for _ in range(3):
            host = torch.randn(32, 64).pin_memory()
            with torch.cuda.stream(copies):
                x = host.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            x.record_stream(torch.cuda.current_stream())
            loss = net(x).square().mean()
            loss.backward()
            losses.append(loss.detach())
        return {"losses": losses, **models.state(net)}

    _check(step)


def test_explicit_and_default_generators():
    def step():
        generator = torch.Generator("cuda").manual_seed(3)
        x = torch.randn(64, 64, device="cuda", generator=generator)
        noise = torch.randn(64, 64, device="cuda")
        y = nn.functional.dropout(x * noise, 0.3) + torch.rand_like(x)
        z = y.sin() + torch.empty_like(x).uniform_(generator=generator)
        return {"z": z, "next": torch.rand(4, device="cuda", generator=generator)}

    _check(step)


def test_recurrent_dropout_state_does_not_start_anew():
    def step():
        net = nn.LSTM(16, 16, 2, dropout=0.5).cuda()
        x = torch.randn(5, 3, 16, device="cuda")
        outputs = []
        for _ in range(3):
            x = nn.functional.dropout(x, 0.1)  # replays set the generator back
            y, _ = net(x)
            y.sum().backward()
            outputs.append(y.detach())
        return {"y": outputs, **models.state(net)}

    _check(step)


@runs.needs_two_gpus
def test_two_devices_in_one_model():
    def step():
        first, second = models.deep_mlp(3).to("cuda:0"), models.deep_mlp(3).to("cuda:1")
        x = torch.randn(16, 64, device="cuda:0", requires_grad=True)
        y = second(first(x).to("cuda:1")).to("cuda:0").sin()
        y.square().sum().backward()
        return {"x": x.grad, "a": models.state(first), "b": models.state(second)}

    plain = runs.execute(step, "cuda")
    with runs.chaos_mode():
        torch.cuda.remat.enable(device="cuda")
    chaos = runs.execute(step, "cuda")
    for device in (0, 1):
        assert torch.cuda.remat.stats(device).replays > 0
    torch.cuda.remat.disable()
    assert not plain.differences(chaos)


@runs.needs_two_gpus
def test_device_of_a_call_is_not_the_current_one():
    torch.cuda.remat.enable("256MiB", device="cuda:1")
    x = torch.randn(64, 64, device="cuda:1")
    y = x.tanh() + torch.ones(64, 64, device="cuda:1")
    expected = y.cpu()
    assert not torch.cuda.remat.is_enabled(0)
    assert _testing.evict(y)
    assert torch.equal(y.cpu(), expected)
    assert torch.cuda.current_device() == 0


@runs.needs_two_gpus
def test_data_parallel():
    def step():
        net = models.deep_mlp(3).cuda()
        parallel = nn.DataParallel(net, [0, 1])
        x = torch.randn(16, 64, device="cuda", requires_grad=True)
        parallel(x).square().sum().backward()
        return {"x": x.grad, **models.state(net)}

    _check(step)
