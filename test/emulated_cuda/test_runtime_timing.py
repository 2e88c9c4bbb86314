"""Timing mode of the stand-in runtime: clocks, and memory without bytes."""

from __future__ import annotations

import math

from emulated_runtime import (
    ANY_KIND,
    ILLEGAL_ADDRESS,
    MIB,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    TO_HOST,
    Runtime,
    emulated,
    fails,
)

GIB = 1 << 30
MS = 1e6  # in ns


def _elapsed(cuda: Runtime, start: int, end: int) -> float:
    cuda.cudaDeviceSynchronize()
    return cuda.elapsed_ms(start, end)


@emulated(timing=1, launch_ns=0)
def test_a_streams_work_takes_the_sum():
    cuda = Runtime()
    a = cuda.stream()
    start = cuda.recorded(a)
    cuda.launch(a, ns=3 * MS)
    middle = cuda.recorded(a)
    cuda.launch(a, ns=2 * MS)
    end = cuda.recorded(a)
    assert _elapsed(cuda, start, middle) == 3
    assert _elapsed(cuda, middle, end) == 2


@emulated(timing=1, launch_ns=0)
def test_streams_overlap_until_one_waits():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    start = cuda.recorded(a)
    cuda.launch(a, ns=5 * MS)
    cuda.launch(b, ns=2 * MS)
    free = cuda.recorded(b)
    cuda.cudaStreamWaitEvent(b, cuda.recorded(a), 0)
    cuda.launch(b, ns=1 * MS)
    assert _elapsed(cuda, start, free) == 2
    assert _elapsed(cuda, start, cuda.recorded(b)) == 6


@emulated(timing=1, launch_ns=0)
def test_work_starts_no_earlier_than_the_host_launches_it():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    start = cuda.recorded(a)
    cuda.launch(a, ns=5 * MS)
    cuda.cudaStreamSynchronize(a)
    cuda.launch(b, ns=1 * MS)
    assert _elapsed(cuda, start, cuda.recorded(b)) == 6


@emulated(timing=1, launch_ns=1000000)
def test_small_work_is_bound_by_launches():
    cuda = Runtime()
    a = cuda.stream()
    start = cuda.recorded(a)
    for _ in range(10):
        cuda.launch(a, ns=1000)
    assert math.isclose(_elapsed(cuda, start, cuda.recorded(a)), 11, abs_tol=0.01)


@emulated(timing=1, launch_ns=1000)
def test_an_event_is_ready_when_its_time_has_come():
    cuda = Runtime()
    a = cuda.stream()
    cuda.launch(a, ns=5500)
    event = cuda.recorded(a)  # the host is at 2000 ns
    answers = [cuda.is_done(event) for _ in range(6)]  # 1000 ns each
    assert answers == [False, False, False, False, True, True]


@emulated(timing=1, gpu="h100-80gb", launch_ns=0, devices=2)
def test_copies_take_what_their_way_allows():
    cuda = Runtime()
    here = cuda.malloc(2 * GIB)
    cuda.cudaSetDevice(1)
    there = cuda.malloc(GIB)
    cuda.cudaSetDevice(0)
    pinned = cuda.pinned(64 * MIB)

    def ms(to, source, size):
        start = cuda.recorded(0)
        cuda.cudaMemcpyAsync(to, source, size, ANY_KIND, 0)
        return _elapsed(cuda, start, cuda.recorded(0))

    def expect(size, bandwidth):
        return size / bandwidth * 1e3

    assert math.isclose(
        ms(here + GIB, here, GIB), expect(GIB, 3350e9 / 2), rel_tol=1e-3
    )
    assert math.isclose(ms(there, here, GIB), expect(GIB, 450e9), rel_tol=1e-3)
    assert math.isclose(
        ms(here, pinned, 64 * MIB), expect(64 * MIB, 50e9), rel_tol=1e-3
    )


@emulated(timing=1)
def test_device_memory_has_no_bytes_to_give_to_the_host():
    cuda = Runtime()
    address, pinned = cuda.malloc(64), cuda.pinned(64)
    with fails(NOT_SUPPORTED, "no bytes in timing mode"):
        cuda.download(address, 64)
    with fails(NOT_SUPPORTED, "no bytes in timing mode"):
        cuda.cudaMemcpyAsync(pinned, address, 64, TO_HOST, 0)
    cuda.upload(address, b"1" * 64)
    cuda.cudaMemset(address, 0, 64)


@emulated(timing=1, gpu="h200", devices=16)
def test_memory_of_any_size_costs_nothing():
    cuda = Runtime()
    for device in range(16):
        cuda.cudaSetDevice(device)
        kept = [cuda.malloc(GIB) for _ in range(131)]
        with fails(OUT_OF_MEMORY):
            cuda.malloc(GIB)
        cuda.launch(0, writes=[(kept[0], GIB)])
        cuda.cudaFree(kept[0])
        with fails(ILLEGAL_ADDRESS):
            cuda.launch(0, reads=[(kept[0], 8)])
        kept[0] = cuda.malloc(GIB)


@emulated(timing=1, launch_ns=0)
def test_freeing_waits_for_the_device():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    address = cuda.malloc(64)
    start = cuda.recorded(b)
    cuda.launch(a, ns=5 * MS)
    cuda.cudaFree(address)
    took = _elapsed(cuda, start, cuda.recorded(b))
    assert math.isclose(took, 5 + 0.057, abs_tol=1e-4)


@emulated(timing=1, launch_ns=0)
def test_a_new_allocation_keeps_the_host_busy():
    cuda = Runtime()
    start = cuda.recorded(0)
    for _ in range(10):
        cuda.malloc(20 * MIB)
    took = _elapsed(cuda, start, cuda.recorded(0))
    assert math.isclose(took, 10 * 0.069, abs_tol=1e-4)
