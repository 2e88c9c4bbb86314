"""Replays and evictions are ordered with the program's streams.

The emulated device reports every access to bytes whose last user was not waited for.
"""

from __future__ import annotations

import threading

import pytest
import torch
import torch.cuda.remat as remat
from torch.cuda.remat import _testing

import runs

pytestmark = runs.needs_gpu


@pytest.fixture(autouse=True)
def _on():
    remat.enable(device="cuda")
    yield
    torch.cuda.synchronize()
    _testing.check_invariants()


def _made(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(256, 256, device="cuda")


def test_replay_on_a_stream_waits_for_what_it_reads():
    x = _made()
    y = x.tanh()
    expected = x.tanh().cpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    x.add_(0)  # the program has not told `side` of this
    y2 = x.tanh()
    assert _testing.evict(y)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y + y2
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(z.cpu(), expected * 2)


def test_value_rematerialized_on_one_stream_is_read_on_another():
    y = _made().tanh()
    expected = y.cpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    assert _testing.evict(y)
    with torch.cuda.stream(side):
        a = y + 1  # replays y on `side`
    b = y + 1  # the program knows of nothing to wait for
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(a.cpu(), expected + 1)
    assert torch.equal(b.cpu(), expected + 1)


def test_leaf_read_by_a_replay_is_written_later():
    x = _made()
    y = x.tanh()
    expected = y.cpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    assert _testing.evict(y)
    with torch.cuda.stream(side):
        a = y + 0
    x.zero_()  # must wait for the replay on `side`, which has read it
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(a.cpu(), expected)


def test_evicted_block_used_on_a_side_stream_is_not_overwritten_early():
    y = _made().tanh()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a = y * 2
    assert _testing.evict(y)  # `side` may still be reading
    torch.zeros_like(a)  # takes the block of y
    torch.zeros(256, 256, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(a, y * 2)


def test_block_rematerialized_elsewhere_dies():
    y = _made().tanh()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    assert _testing.evict(y)
    with torch.cuda.stream(side):
        a = y + 1
    torch.cuda.current_stream().wait_stream(side)
    b = y + 2
    del y  # the program made it on this stream and thinks that it goes back there
    with torch.cuda.stream(side):
        c = torch.zeros(256, 256, device="cuda") + 5
    torch.cuda.current_stream().wait_stream(side)
    assert float((b - a).mean()) == pytest.approx(1, abs=1e-3)
    assert float(c.mean()) == 5


def test_record_stream_holds_for_later_bytes():
    y = _made().tanh()
    expected = y.cpu()
    side = torch.cuda.Stream()
    assert _testing.evict(y)
    y.record_stream(side)
    assert not _testing.is_resident(y)
    z = y + 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a = y * 1
    del y
    torch.zeros(256, 256, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(a.cpu(), expected)
    assert torch.equal(z.cpu(), expected + 1)


def test_in_place_chain_is_replayed_on_a_side_stream():
    y = _made().tanh()
    y.mul_(2)
    y.add_(1)
    expected = y.cpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    assert _testing.evict(y)
    with torch.cuda.stream(side):
        a = y + 0
    y.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(a.cpu(), expected)
    assert torch.equal(y.cpu(), expected + 1)


def test_backward_on_the_streams_of_forward():
    def step(evict: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        w = torch.randn(128, 128, device="cuda", requires_grad=True)
        x = torch.randn(64, 128, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            left = (x @ w).tanh().sin()
        right = (x @ w).sigmoid().cos()
        torch.cuda.current_stream().wait_stream(side)
        loss = (left * right).square().mean()
        if evict:
            assert _testing.evict_all() > 0
        loss.backward()
        return [loss.detach().cpu(), w.grad.cpu()]

    for plain, evicted in zip(step(False), step(True)):
        assert torch.equal(plain, evicted)


def test_threads_with_streams_of_their_own():
    shared = _made().tanh()
    torch.cuda.synchronize()
    expected = (shared @ shared).cpu()
    wrong: list[object] = []

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                for _ in range(10):
                    h = shared @ shared
                    _testing.evict_all()
                    if not torch.equal(h.cpu(), expected):
                        wrong.append("differs")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
