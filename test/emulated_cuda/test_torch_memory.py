"""torch.cuda's memory, streams and graphs over the stand-in runtime."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

MIB = 1 << 20
RUNTIME = ctypes.CDLL("libcudart.so.12")

needs_two_devices = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="with_env.sh --devices 2"
)


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def test_it_says_what_it_is():
    properties = torch.cuda.get_device_properties(0)
    assert properties.name.endswith("(emulated)")
    assert torch.cuda.mem_get_info()[1] == properties.total_memory


def test_running_out_of_memory_is_torchs_own_error():
    free, total = torch.cuda.mem_get_info()
    assert free < total  # of which the context takes a part
    half = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="this process has .* in use"):
        torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    del half
    torch.empty(total // 2, dtype=torch.uint8, device="cuda")


def test_pinned_memory_is_not_reused_while_a_copy_reads_it():
    host = torch.ones(1000).pin_memory()
    address = host.data_ptr()
    copy = torch.empty(1000, device="cuda")
    copy.copy_(host, non_blocking=True)
    del host
    other = torch.empty(1000, pin_memory=True)
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert torch.empty(1000, pin_memory=True).data_ptr() == address


def test_failures_on_demand():
    torch.cuda.init()
    # The allocator frees what it caches and tries once more.
    RUNTIME.emulatedCudaFailAllocations(0, 0, 2)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(32 * MIB, device="cuda")
    torch.empty(32 * MIB, device="cuda")


def test_the_cache_goes_back_to_the_device():
    before = torch.cuda.mem_get_info()[0]
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del x
    assert torch.cuda.mem_get_info()[0] == before - 64 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == before


def test_a_stream_that_did_not_wait_is_reported():
    x, side = torch.ones(1000, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        with pytest.raises(RuntimeError, match="data race: aten::mul"):
            x * 2
        side.wait_stream(torch.cuda.default_stream())
        y = x * 2
    torch.cuda.default_stream().wait_stream(side)
    assert y.sum().item() == 2000


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_block_that_a_side_stream_uses_is_kept_by_record_stream(is_recorded):
    side = torch.cuda.Stream()
    x = torch.ones(1000, device="cuda")
    address = x.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total = x.sum()
    if is_recorded:
        x.record_stream(side)
    del x
    if is_recorded:
        assert torch.zeros(1000, device="cuda").data_ptr() != address
    else:
        with pytest.raises(RuntimeError, match=r"data race: aten::\w+ .* overwrites"):
            torch.zeros(1000, device="cuda")
    side.synchronize()
    assert total.item() == 1000


def test_a_view_of_a_block_that_was_freed_is_reported():
    x = torch.ones(1000, device="cuda")
    address = (x.data_ptr(), False)
    interface = {"shape": (1000,), "typestr": "<f4", "data": address, "version": 2}
    holder = type("Holder", (), {"__cuda_array_interface__": interface})
    dangling = torch.as_tensor(holder(), device="cuda")
    assert dangling.data_ptr() == x.data_ptr()
    del x
    with pytest.raises(RuntimeError, match="aten::sum.* a block that was freed"):
        dangling.sum()


def test_pinned_memory_and_copies_that_do_not_block():
    source = torch.arange(1000.0).pin_memory()
    assert source.is_pinned()
    assert not torch.arange(3).is_pinned()
    target = torch.empty(1000).pin_memory()
    x = source.to("cuda", non_blocking=True)
    target.copy_(x * 2, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(target, source * 2)


def test_a_graph_replays_on_the_memory_of_its_pool():
    x = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).relu() - 3  # frees blocks that each replay writes
    for value in (5, 7):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [value * 2 - 2] * 1000


def test_what_waits_for_the_host_cannot_be_captured():
    x = torch.ones(10, device="cuda")
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.nonzero()
    assert x.sum().item() == 10


def test_sleep_is_work_of_the_current_stream():
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    assert torch.cuda.current_stream().query()
    assert not side.query()
    side.synchronize()
    assert side.query()


@needs_two_devices
def test_two_devices():
    x = torch.arange(1000.0, device="cuda:0")
    y = x.to("cuda:1")
    assert y.device.index == 1
    assert torch.equal((y * 2).cpu(), torch.arange(1000.0) * 2)
    with pytest.raises(RuntimeError, match="same device"):
        x + y


_SPAWNS = """
import multiprocessing, torch

def child(numbers, queue):
    queue.put(torch.tensor(numbers, device="cuda").sum().item())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=([1.0, 2.0, 3.0], queue))
    process.start()
    assert queue.get(timeout=60) == 6
    process.join()
    assert process.exitcode == 0
"""


def test_processes_that_are_started_have_the_device_too(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(_SPAWNS)
    subprocess.run([sys.executable, script], check=True, timeout=120)


def test_who_only_looks_for_torch_does_not_lose_the_executor():
    code = "import importlib.util; importlib.util.find_spec('torch')\n"
    code += "import torch; assert torch.ones(3, device='cuda').sum().item() == 3"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


_GROWS = """
import torch
tensors = [torch.full((3 << 18,), i, device="cuda") for i in range(40)]
segments = torch.cuda.memory_snapshot()
assert all(s["is_expandable"] for s in segments), segments
assert all((t == i).all() for i, t in enumerate(tensors))
before = torch.cuda.memory_reserved()
tensors[10:30] = []
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < before / 2 + (4 << 20)
kept = torch.full((9 << 20,), 7, device="cuda")
assert (kept == 7).all() and all((t == t[0]).all() for t in tensors)
"""


@pytest.mark.parametrize(
    ("settings", "code", "error"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, _GROWS, None),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            "import torch; torch.empty(3, device='cuda')",
            "not supported",
        ),
        (
            {"CUDA_VISIBLE_DEVICES": ""},
            "import torch; assert not torch.cuda.is_available(); torch.empty(3).cuda()",
            "No CUDA GPUs are available",
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "0"},
            "import torch; assert torch.cuda.device_count() == 1; torch.ones(3).cuda()",
            None,
        ),
    ],
    ids=["expandable segments", "cudaMallocAsync", "no device", "one device"],
)
def test_settings_of_torch(settings, code, error):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        text=True,
        capture_output=True,
        timeout=120,
    )
    if error is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1, done.stderr
        assert error in done.stderr
