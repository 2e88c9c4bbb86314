"""Fixtures: every test starts and ends with remat off and its invariants checked."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
import torch.cuda.remat
from torch.cuda.remat import _testing

import runs

# The one place that says on which devices the semantic tests run.
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def pytest_collection_finish() -> None:
    """Leave everything imported so far out of later collections: they are many."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    return str(request.param)


def _device_of(request: pytest.FixtureRequest) -> str:
    callspec = getattr(request.node, "callspec", None)
    return "cpu" if callspec is None else callspec.params.get("device", "cpu")


@pytest.fixture(autouse=True)
def _clean_state(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.delenv(runs.CHAOS, raising=False)
    monkeypatch.delenv("PYTORCH_REMAT_BUDGET", raising=False)
    # The tests' tensors are small, and are to be managed like large ones.
    monkeypatch.setenv("PYTORCH_REMAT_SMALLEST", "1")
    marker = request.node.get_closest_marker("cpu_only")
    if marker is not None and _device_of(request) != "cpu":
        pytest.skip(marker.args[0])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # What a test makes without saying where is made on the device under test.
    explicit = request.node.get_closest_marker("explicit_device") is not None
    on_gpu = _device_of(request) != "cpu" and not explicit
    torch.set_default_device("cuda" if on_gpu else None)
    yield
    torch.set_default_device(None)
    torch.cuda.remat.disable()
    torch.set_num_threads(threads)


@pytest.fixture
def remat_off(device: str) -> ModuleType:
    """``torch.cuda.remat``, not enabled."""
    return torch.cuda.remat


@pytest.fixture
def remat(device: str) -> Iterator[ModuleType]:
    """``torch.cuda.remat``, recording without a limit; invariants are checked after."""
    module = torch.cuda.remat
    module.enable(device=device)
    module.reset_stats(device)
    module.reset_peak_memory_stats(device)
    yield module
    gc.collect()
    if module.is_enabled(device):
        _testing.check_invariants()
        module.disable()


@pytest.fixture
def empty_gpu() -> Iterator[None]:
    """The GPU's allocator holds nothing before and after."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.remat.disable()
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def run_twice(device: str) -> Callable[..., dict[str, runs.Outcome]]:
    """:func:`runs.run_twice` on the device under test."""
    return functools.partial(runs.run_twice, device=device)
