"""Counters on examples that are small enough to count by hand; the summary."""

from __future__ import annotations

import re

import pytest
import torch
from torch.cuda.remat import _testing

import models
import runs

KIB = 1024


def test_capture_counts_ops(remat, device):
    x = torch.ones(256, device=device)
    remat.reset_stats(device)
    a = x.sin()
    b = a.cos()
    c = a + b
    # sin, cos, add
    assert remat.stats(device).ops_captured == 3
    assert remat.stats(device).evictions == 0
    assert remat.stats(device).replays == 0
    del c


def test_evictions_and_replays_are_counted(remat, device):
    x = torch.ones(256, device=device)
    a = x.sin()
    b = a.cos()
    c = b.exp()
    remat.reset_stats(device)
    _testing.evict(a)
    _testing.evict(b)
    _testing.evict(c)
    assert remat.stats(device).evictions == 3
    c.sum()
    # c needs exp <- cos <- sin, each once
    stats = remat.stats(device)
    assert stats.replays == 3
    assert stats.max_replay_depth == 3
    assert stats.recompute_ns > 0


def test_second_eviction_of_the_same_value_counts_again(remat, device):
    a = torch.ones(256, device=device).sin()
    remat.reset_stats(device)
    for _ in range(4):
        _testing.evict(a)
        a.sum()
    assert remat.stats(device).evictions == 4
    # Each time both ops: the ones are gone, so they are made again for sin.
    assert remat.stats(device).replays == 4 * 2


def test_evicting_what_is_evicted_counts_nothing(remat, device):
    a = torch.ones(256, device=device).sin()
    assert _testing.evict(a)
    remat.reset_stats(device)
    assert not _testing.evict(a)
    assert remat.stats(device).evictions == 0


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_bytes_follow_eviction(remat, device):
    x = torch.ones(KIB, device=device)
    a = x.sin()  # 4 KiB
    b = a.cos()  # 4 KiB
    before = remat.stats(device)
    _testing.evict(b)
    after = remat.stats(device)
    assert before.bytes_now - after.bytes_now == runs.about(4 * KIB)
    assert after.evicted_bytes - before.evicted_bytes == runs.about(4 * KIB)
    assert before.resident_bytes - after.resident_bytes == runs.about(4 * KIB)
    del a, b
    assert remat.stats(device).evicted_bytes == before.evicted_bytes


def test_bytes_now_is_the_allocators_count(remat, device):
    x = torch.ones(KIB, device=device)
    assert remat.stats(device).bytes_now == remat.memory_allocated(device)
    y = x.sin()
    assert remat.stats(device).bytes_now == remat.memory_allocated(device)
    del y
    assert remat.stats(device).bytes_now == remat.memory_allocated(device)


def test_pinned_and_escaped_bytes(remat, device):
    x = torch.ones(KIB, device=device)
    a, b = x.sin(), x.cos()
    before = remat.stats(device)
    remat.pin(a)
    assert remat.stats(device).pinned_bytes - before.pinned_bytes == runs.about(4 * KIB)
    remat.unpin(a)
    assert remat.stats(device).pinned_bytes == before.pinned_bytes
    b.data_ptr()
    assert remat.stats(device).escaped_bytes - before.escaped_bytes == runs.about(
        4 * KIB
    )
    del b
    assert remat.stats(device).escaped_bytes == before.escaped_bytes


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_peak_bytes_is_reset(remat, device):
    a = torch.ones(64 * KIB, device=device).sin()
    del a
    assert remat.stats(device).bytes_peak >= remat.stats(device).bytes_now + 256 * KIB
    remat.reset_peak_memory_stats(device)
    assert remat.stats(device).bytes_peak < remat.stats(device).bytes_now + 256 * KIB


def test_reset_sets_totals_to_zero_and_keeps_what_is_live(remat, device):
    a = torch.ones(256, device=device).sin()
    _testing.evict(a)
    a.sum()
    live = remat.stats(device).storages
    remat.reset_stats(device)
    stats = remat.stats(device)
    assert stats.evictions == stats.replays == stats.ops_captured == 0
    assert stats.recompute_ns == stats.overhead_ns == stats.ooms == stats.faults == 0
    assert stats.storages == live


def test_replays_of_a_training_step_under_chaos_are_at_least_one_per_saved_value(
    run_twice, device
):
    def step():
        model = models.deep_mlp(5).to(device)
        model(torch.randn(16, 64, device=device)).sum().backward()
        return models.state(model)

    stats = run_twice(step)["chaos"].stats
    # backward reads the five tanh outputs, evicted after forward
    assert stats.replays >= 5
    assert stats.evictions >= 5


def test_ops_that_cannot_be_replayed_are_counted_by_reason(remat, device):
    x = torch.ones(256, device=device)
    generator = torch.Generator(device).manual_seed(1)
    y = torch.rand(256, generator=generator, device=device) + x
    stats = remat.stats(device)
    assert all(isinstance(k, str) and k for k in stats.not_replayable)
    assert all(isinstance(v, int) and v > 0 for v in stats.not_replayable.values())
    del y


def test_overhead_is_measured(remat, device):
    remat.reset_stats(device)
    x = torch.ones(16, device=device)
    for _ in range(2000):
        x = x + 1
    # two thousand captured ops cost something, and far less than a millisecond each
    assert 0 < remat.stats(device).overhead_ns < 2000 * 1_000_000


def test_summary_is_a_table_of_the_stats(remat, device):
    remat.set_budget("1GiB", device=device)
    a = torch.ones(256, device=device).sin()
    _testing.evict(a)
    a.sum()
    text = remat.summary(device)
    title, *lines = text.splitlines()
    assert device in title
    assert len({len(line) for line in lines}) == 1, text
    assert all(line[0] == line[-1] == "|" for line in lines), text
    assert re.search(r"(?m)^\| budget +\| +1\.0+ GiB \|$", text), text
    for row in ("resident", "evicted", "pinned", "evictions", "replays"):
        assert re.search(rf"(?m)^\|.*\b{row}", text), (row, text)


def test_summary_when_not_enabled_says_so(remat_off, device):
    assert re.search("not enabled|off|disabled", remat_off.summary(device))
