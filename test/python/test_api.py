"""What ``torch.cuda.remat`` accepts, returns and refuses."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
import warnings

import pytest
import torch
import torch.cuda.remat
from torch.cuda.remat import _testing

import models
import runs

STATS = {
    "budget_bytes",
    "bytes_now",
    "bytes_peak",
    "escaped_bytes",
    "iteration_kinds",
    "largest_hole_bytes",
    "plan_in_use",
    "plan_search",
    "planner_bytes",
    "plans_adopted",
    "plans_tried",
    "evicted_bytes",
    "evictions",
    "faults",
    "fragmentation",
    "fragmentation_evictions",
    "leaf_bytes",
    "max_replay_depth",
    "moved_bytes",
    "moves",
    "not_replayable",
    "ooms",
    "op_records",
    "ops_captured",
    "overhead_ns",
    "pinned_bytes",
    "recompute_ns",
    "replays",
    "resident_bytes",
    "storages",
}
BASELINES = {"lru", "largest", "msps", "dtr", "dtr_eq", "dte", "coop", "centrality"}


def test_public_names_are_listed_and_there(remat_off, device):
    expected = {
        "Stats",
        "budget",
        "disable",
        "enable",
        "is_enabled",
        "max_memory_allocated",
        "memory_allocated",
        "parse_bytes",
        "pin",
        "policies",
        "record_trace",
        "reset_peak_memory_stats",
        "reset_stats",
        "set_budget",
        "stats",
        "summary",
        "unpin",
    }
    assert expected <= set(remat_off.__all__)
    for name in remat_off.__all__:
        assert hasattr(remat_off, name)


def test_enable_and_disable_are_seen_by_is_enabled(remat_off, device):
    assert not remat_off.is_enabled(device)
    remat_off.enable("1GiB", device=device)
    assert remat_off.is_enabled(device)
    remat_off.disable()
    assert not remat_off.is_enabled(device)


def test_disable_twice_is_harmless(remat_off, device):
    remat_off.enable(device=device)
    remat_off.disable()
    remat_off.disable()
    assert not remat_off.is_enabled(device)


def test_enable_again_changes_the_budget(remat_off, device):
    remat_off.enable("1GiB", device=device)
    remat_off.enable("2GiB", device=device)
    assert remat_off.stats(device).budget_bytes == 2 << 30


def test_enable_without_a_budget_records_only(remat_off, device):
    remat_off.enable(device=device)
    remat_off.reset_stats(device)
    x = torch.randn(64, 64, device=device).tanh()
    stats = remat_off.stats(device)
    assert stats.budget_bytes is None
    assert stats.ops_captured >= 1
    assert stats.evictions == 0
    del x


def test_enable_takes_the_budget_from_the_environment(remat_off, device, monkeypatch):
    monkeypatch.setenv("PYTORCH_REMAT_BUDGET", "3GiB")
    remat_off.enable(device=device)
    assert remat_off.stats(device).budget_bytes == 3 << 30


def test_argument_wins_over_the_environment(remat_off, device, monkeypatch):
    monkeypatch.setenv("PYTORCH_REMAT_BUDGET", "3GiB")
    remat_off.enable("1GiB", device=device)
    assert remat_off.stats(device).budget_bytes == 1 << 30


def test_bad_budget_in_the_environment_is_named(remat_off, device, monkeypatch):
    monkeypatch.setenv("PYTORCH_REMAT_BUDGET", "lots")
    with pytest.raises(ValueError, match="lots"):
        remat_off.enable(device=device)
    assert not remat_off.is_enabled(device)


def test_budget_context_enables_and_restores(remat_off, device):
    with remat_off.budget("1GiB", device=device):
        assert remat_off.is_enabled(device)
        assert remat_off.stats(device).budget_bytes == 1 << 30
    assert not remat_off.is_enabled(device)


def test_nested_budgets_restore_the_outer_one(remat_off, device):
    with remat_off.budget("2GiB", device=device, policy="lru"):
        with remat_off.budget("1GiB", device=device):
            assert remat_off.stats(device).budget_bytes == 1 << 30
        assert remat_off.is_enabled(device)
        assert remat_off.stats(device).budget_bytes == 2 << 30


def test_budget_context_restores_after_an_exception(remat_off, device):
    with pytest.raises(KeyError), remat_off.budget("1GiB", device=device):
        raise KeyError
    assert not remat_off.is_enabled(device)


def test_set_budget_changes_the_limit_and_evicts_down_to_it(remat, device):
    model = models.deep_mlp(12, 128).to(device)
    hidden = model(torch.randn(512, 128, device=device))
    if device == "cuda":
        torch.cuda.empty_cache()  # free segments would do instead of evictions
    used = remat.memory_allocated(device)
    remat.set_budget(used - (1 << 20), device=device)
    assert remat.stats(device).budget_bytes == used - (1 << 20)
    (hidden + 1).sum()  # the limit holds at the latest at the next allocation
    assert remat.memory_allocated(device) <= used - (1 << 20)
    assert remat.stats(device).evictions > 0


def test_disable_makes_every_evicted_value_resident(remat, device):
    x = torch.randn(64, 64, device=device)
    y = x.tanh()
    expected = y.clone()
    assert _testing.evict(y)
    remat.disable()
    assert torch.equal(y, expected)
    assert y.tolist() == expected.tolist()


def test_graph_made_while_enabled_goes_backward_after_disable(remat, device):
    model = models.deep_mlp().to(device)
    x = torch.randn(8, 64, device=device)
    loss = model(x).square().mean()
    _testing.evict_all()
    remat.disable()
    loss.backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for gradient, parameter in zip(found, model.parameters()):
        assert torch.equal(gradient, parameter.grad)


@pytest.mark.parametrize("policy", sorted(BASELINES))
@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_every_policy_keeps_the_budget_and_the_values(run_twice, device, policy):
    def train():
        model = models.deep_mlp(10, 64).to(device)
        return models.train(model, lambda: torch.randn(256, 64, device=device))

    plain = runs.execute(train, device)
    budgeted = runs.execute_enabled(
        train, device, ratio=0.5, plain=plain, policy=policy
    )
    assert plain.differences(budgeted) == []
    assert budgeted.stats.evictions > 0


def test_policies_lists_the_baselines(remat_off, device):
    names = remat_off.policies()
    assert isinstance(names, tuple)
    assert set(names) >= BASELINES


def test_unknown_policy_is_refused_with_the_known_names(remat_off, device):
    with pytest.raises(ValueError, match="nonsense") as refused:
        remat_off.enable(device=device, policy="nonsense")
    for name in BASELINES:
        assert name in str(refused.value)
    assert not remat_off.is_enabled(device)


@pytest.mark.parametrize("limit", [0, -1, "0", "-5MB", float("nan"), "110%", "0%", ""])
def test_limit_that_is_no_positive_size_is_refused(remat_off, device, limit):
    with pytest.raises(ValueError, match="budget|size|bytes|%"):
        remat_off.enable(limit, device=device)
    assert not remat_off.is_enabled(device)


@pytest.mark.parametrize("limit", [[], {}, object(), b"1GiB"])
def test_limit_of_a_wrong_type_is_refused(remat_off, device, limit):
    with pytest.raises((TypeError, ValueError)):
        remat_off.enable(limit, device=device)
    assert not remat_off.is_enabled(device)


def test_unknown_device_is_refused(remat_off, device):
    with pytest.raises((ValueError, RuntimeError), match="device|meta"):
        remat_off.enable("1GiB", device="meta")
    assert not remat_off.is_enabled(device)


def test_default_device_is_the_cpu_without_a_gpu(remat_off):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    remat_off.enable("1GiB")
    assert remat_off.is_enabled("cpu")
    assert remat_off.is_enabled()


def test_device_may_be_a_torch_device(remat_off, device):
    remat_off.enable("1GiB", device=torch.device(device))
    assert remat_off.is_enabled(torch.device(device))


def test_pinned_tensor_is_not_evicted_until_unpinned(remat, device):
    x = torch.randn(64, 64, device=device).tanh()
    remat.pin(x)
    assert not _testing.evict(x)
    assert _testing.is_resident(x)
    remat.unpin(x)
    assert _testing.evict(x)
    assert not _testing.is_resident(x)


def test_pins_are_counted(remat, device):
    x = torch.randn(64, 64, device=device).tanh()
    remat.pin(x)
    remat.pin(x)
    remat.unpin(x)
    assert not _testing.evict(x)
    remat.unpin(x)
    assert _testing.evict(x)


def test_pin_of_an_evicted_tensor_makes_it_resident(remat, device):
    x = torch.randn(64, 64, device=device).tanh()
    expected = x.clone()
    assert _testing.evict(x)
    remat.pin(x)
    assert _testing.is_resident(x)
    assert torch.equal(x, expected)
    remat.unpin(x)


def test_pin_of_a_view_pins_the_storage(remat, device):
    x = torch.randn(64, 64, device=device).tanh()
    view = x[3:5]
    remat.pin(view)
    assert not _testing.evict(x)
    remat.unpin(x)
    assert _testing.evict(view)


def test_unpin_without_pin_is_refused(remat, device):
    x = torch.randn(64, 64, device=device).tanh()
    with pytest.raises((ValueError, RuntimeError), match="pin"):
        remat.unpin(x)


def test_pin_of_something_else_is_refused(remat, device):
    with pytest.raises((AttributeError, TypeError)):
        remat.pin([1, 2, 3])


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_pinned_tensor_may_die(remat, device):
    x = torch.randn(64, 64, device=device).tanh()
    remat.pin(x)
    before = remat.memory_allocated(device)
    del x
    assert remat.memory_allocated(device) == runs.about(before - 64 * 64 * 4)


def test_stats_is_frozen_and_complete(remat, device):
    stats = remat.stats(device)
    assert dataclasses.is_dataclass(stats)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.evictions = 3
    fields = {field.name for field in dataclasses.fields(stats)}
    assert fields >= STATS
    for name in STATS - {
        "budget_bytes",
        "fragmentation",
        "not_replayable",
        "plan_in_use",
    }:
        assert isinstance(getattr(stats, name), int), name
    assert 0 <= stats.fragmentation <= 1
    assert isinstance(stats.not_replayable, dict)


def test_stats_before_enable_are_all_zero(device):
    program = (
        "import torch, torch.cuda.remat as r\n"
        f"s = r.stats({device!r})\n"
        "assert s.evictions == s.replays == s.ops_captured == 0, s\n"
        "assert s.budget_bytes is None, s\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_not_enabled_means_no_tensor_is_managed(remat_off, device):
    x = torch.randn(8, device=device).tanh()
    assert not _testing.is_managed(x)


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_memory_is_counted_without_enable(remat_off, device):
    before = remat_off.memory_allocated(device)
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    assert remat_off.memory_allocated(device) == runs.about(before + (1 << 20))
    del x
    assert remat_off.memory_allocated(device) == before


@pytest.mark.cpu_only("counts bytes; see test_cuda_memory.py")
def test_peak_memory_is_kept_until_it_is_reset(remat_off, device):
    remat_off.reset_peak_memory_stats(device)
    before = remat_off.memory_allocated(device)
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    del x
    assert remat_off.max_memory_allocated(device) == runs.about(before + (1 << 20))
    remat_off.reset_peak_memory_stats(device)
    assert remat_off.max_memory_allocated(device) == before


def test_tensors_from_before_enable_are_leaves(remat_off, device):
    x = torch.randn(64, 64, device=device)
    remat_off.enable(device=device)
    y = x.tanh()
    expected = y.clone()
    assert not _testing.evict(x)
    assert _testing.evict(y)
    assert torch.equal(y, expected)


def test_enable_says_nothing(remat_off, device, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remat_off.enable("1GiB", device=device)
        torch.randn(8, device=device).tanh()
        remat_off.disable()
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_record_trace_writes_json_lines(remat, device, tmp_path: pathlib.Path):
    path = tmp_path / "trace.jsonl"
    with remat.record_trace(path, device=device):
        model = models.deep_mlp(3, 32).to(device)
        model(torch.randn(4, 32, device=device)).sum().backward()
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) > 10
    assert all(isinstance(record, dict) for record in records)


def test_record_trace_to_a_folder_that_is_not_there_is_refused(remat, device, tmp_path):
    path = tmp_path / "missing" / "trace.jsonl"
    trace = remat.record_trace(path, device=device)
    with pytest.raises((OSError, ValueError), match="missing"), trace:
        pass


def test_version_names_the_fork():
    assert torch.__version__.startswith("2.6.0+remat")
    assert torch.cuda.remat.__version__
