"""Streams, events and the order of accesses in the stand-in runtime."""

from __future__ import annotations

import ctypes

from emulated_runtime import (
    ANY_KIND,
    ILLEGAL_STATE,
    INVALID_HANDLE,
    NO_TIMING,
    NOT_READY,
    PAGE,
    Runtime,
    emulated,
    fails,
)

BLOCKING = 0


def _bytes(cuda: Runtime) -> tuple[int, int]:
    return cuda.malloc(PAGE), 512


@emulated()
def test_a_read_of_what_another_stream_wrote_is_reported():
    cuda = Runtime()
    x, a, b = _bytes(cuda), cuda.stream(), cuda.stream()
    cuda.launch(a, "matmul", writes=[x])
    with fails(ILLEGAL_STATE, "relu on stream 2 reads", "matmul on stream 1 wrote"):
        cuda.launch(b, "relu", reads=[x])


@emulated()
def test_a_write_over_what_another_stream_reads_is_reported():
    cuda = Runtime()
    x, a, b = _bytes(cuda), cuda.stream(), cuda.stream()
    cuda.launch(a, "relu", reads=[x])
    cuda.launch(b, "sum", reads=[x])  # two readers need no order
    with fails(ILLEGAL_STATE, "zero_ on stream 2 overwrites", "relu on stream 1 reads"):
        cuda.launch(b, "zero_", writes=[x])


@emulated()
def test_one_shared_byte_is_enough():
    cuda = Runtime()
    address, a, b = cuda.malloc(PAGE), cuda.stream(), cuda.stream()
    cuda.launch(a, writes=[(address, 100)])
    cuda.launch(b, writes=[(address + 100, 100)])
    with fails(ILLEGAL_STATE):
        cuda.launch(b, reads=[(address + 99, 1)])


@emulated()
def test_an_event_orders_what_came_before_it():
    cuda = Runtime()
    x, y = _bytes(cuda), _bytes(cuda)
    a, b = cuda.stream(), cuda.stream()
    cuda.launch(a, writes=[x])
    event = cuda.recorded(a)
    cuda.launch(a, writes=[y])
    cuda.cudaStreamWaitEvent(b, event, 0)
    cuda.launch(b, reads=[x])
    with fails(ILLEGAL_STATE):
        cuda.launch(b, reads=[y])


@emulated()
def test_order_passes_through_a_third_stream():
    cuda = Runtime()
    x = _bytes(cuda)
    a, b, c = cuda.stream(), cuda.stream(), cuda.stream()
    cuda.launch(a, writes=[x])
    cuda.cudaStreamWaitEvent(b, cuda.recorded(a), 0)
    cuda.cudaStreamWaitEvent(c, cuda.recorded(b), 0)
    cuda.launch(c, writes=[x])


@emulated()
def test_an_event_counts_as_last_recorded():
    cuda = Runtime()
    x, a, b = _bytes(cuda), cuda.stream(), cuda.stream()
    event = cuda.recorded(a)
    cuda.launch(a, writes=[x])
    cuda.cudaEventRecord(event, a)
    cuda.cudaStreamWaitEvent(b, event, 0)
    cuda.launch(b, reads=[x])


@emulated()
def test_waiting_for_an_event_that_was_not_recorded_orders_nothing():
    cuda = Runtime()
    x, a, b = _bytes(cuda), cuda.stream(), cuda.stream()
    cuda.launch(a, writes=[x])
    cuda.cudaStreamWaitEvent(b, cuda.event(), 0)
    with fails(ILLEGAL_STATE):
        cuda.launch(b, reads=[x])


@emulated()
def test_the_host_orders_what_it_waited_for():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    for wait in (
        lambda: cuda.cudaStreamSynchronize(a),
        lambda: cuda.cudaDeviceSynchronize(),
        lambda: cuda.cudaEventSynchronize(cuda.recorded(a)),
    ):
        x = _bytes(cuda)
        cuda.launch(a, writes=[x])
        wait()
        cuda.launch(b, reads=[x])


@emulated()
def test_device_synchronization_covers_streams_that_are_gone():
    cuda = Runtime()
    x, a, b = _bytes(cuda), cuda.stream(), cuda.stream()
    cuda.launch(a, writes=[x])
    cuda.cudaStreamDestroy(a)
    with fails(ILLEGAL_STATE):
        cuda.launch(b, reads=[x])
    cuda.cudaDeviceSynchronize()
    cuda.launch(b, reads=[x])
    with fails(INVALID_HANDLE):
        cuda.launch(a)


@emulated(devices=2)
def test_devices_are_not_ordered_with_each_other():
    cuda = Runtime()
    x, here = _bytes(cuda), cuda.stream()
    cuda.launch(here, writes=[x])
    event = cuda.recorded(here)
    cuda.cudaSetDevice(1)
    there = cuda.stream()
    cuda.cudaDeviceSynchronize()
    with fails(ILLEGAL_STATE):
        cuda.launch(there, reads=[x])
    with fails(INVALID_HANDLE, "another device"):
        cuda.cudaEventRecord(event, there)
    cuda.cudaStreamWaitEvent(there, event, 0)
    cuda.launch(there, reads=[x])


@emulated()
def test_the_default_stream_waits_for_blocking_streams_and_they_for_it():
    cuda = Runtime()
    x, blocking, other = _bytes(cuda), cuda.stream(BLOCKING), cuda.stream()
    cuda.launch(blocking, writes=[x])
    cuda.launch(0, writes=[x])
    cuda.launch(blocking, writes=[x])
    cuda.launch(0, reads=[x])
    with fails(ILLEGAL_STATE):
        cuda.launch(other, reads=[x])


@emulated()
def test_copies_are_accesses():
    cuda = Runtime()
    x, a = cuda.malloc(64), cuda.stream()
    pinned, second = cuda.pinned(64), cuda.pinned(64)
    cuda.cudaMemcpyAsync(x, pinned, 64, ANY_KIND, a)
    with fails(ILLEGAL_STATE, "memcpy on stream 0 overwrites", "memcpy on stream 1"):
        cuda.cudaMemcpyAsync(pinned, second, 64, ANY_KIND, 0)
    with fails(ILLEGAL_STATE, "memset on stream 0 overwrites"):
        cuda.cudaMemset(x, 0, 64)
    # From pageable memory it is staged, and the call waits.
    cuda.cudaMemcpyAsync(x, b"1" * 64, 64, ANY_KIND, a)
    cuda.cudaMemset(x, 0, 64)


@emulated()
def test_pinned_memory_can_be_reused_by_others_once_freed():
    cuda = Runtime()
    x, a = cuda.malloc(64), cuda.stream()
    buffer = ctypes.create_string_buffer(64)
    address = ctypes.addressof(buffer)
    cuda.cudaHostRegister(address, 64, 0)
    cuda.cudaMemcpyAsync(x, address, 64, ANY_KIND, a)
    cuda.cudaHostUnregister(address)  # waits
    cuda.cudaHostRegister(address, 64, 0)
    cuda.cudaMemcpyAsync(address, cuda.pinned(64), 64, ANY_KIND, cuda.stream())


@emulated(races="ignore")
def test_races_can_be_ignored():
    cuda = Runtime()
    x = _bytes(cuda)
    cuda.launch(cuda.stream(), writes=[x])
    cuda.launch(cuda.stream(), reads=[x])


@emulated(races="warn")
def test_races_can_be_only_told():
    cuda = Runtime()
    x = _bytes(cuda)
    cuda.launch(cuda.stream(), writes=[x])
    cuda.launch(cuda.stream(), reads=[x])


@emulated(event_lag=2)
def test_work_that_nobody_waited_for_is_not_ready_at_first():
    cuda = Runtime()
    a = cuda.stream()
    assert cuda.is_done(cuda.event())
    cuda.launch(a)
    event = cuda.recorded(a)
    assert [cuda.is_done(event) for _ in range(4)] == [False, False, True, True]
    cuda.launch(a)
    for _ in range(2):
        assert cuda.library.cudaStreamQuery(ctypes.c_size_t(a)) == NOT_READY
    assert cuda.library.cudaGetLastError() == 0
    cuda.cudaStreamQuery(a)


@emulated(event_lag=5)
def test_what_comes_before_a_finished_event_is_finished():
    cuda = Runtime()
    a = cuda.stream()
    first = cuda.recorded(a)
    second = cuda.recorded(a)
    cuda.cudaEventSynchronize(second)
    assert cuda.is_done(first)


@emulated(event_lag=1)
def test_a_query_that_says_ready_orders():
    cuda = Runtime()
    x, a, b = _bytes(cuda), cuda.stream(), cuda.stream()
    cuda.launch(a, writes=[x])
    event = cuda.recorded(a)
    assert not cuda.is_done(event)
    with fails(ILLEGAL_STATE):
        cuda.launch(b, reads=[x])
    assert cuda.is_done(event)
    cuda.launch(b, reads=[x])


@emulated()
def test_elapsed_time_needs_events_that_were_recorded_with_time():
    cuda = Runtime()
    start, end, never = cuda.recorded(0), cuda.recorded(0), cuda.event()
    with fails(NOT_READY):
        cuda.elapsed_ms(start, end)
    cuda.cudaDeviceSynchronize()
    assert cuda.elapsed_ms(start, end) >= 0
    with fails(INVALID_HANDLE):
        cuda.elapsed_ms(start, never)
    untimed = cuda.event(NO_TIMING)
    cuda.cudaEventRecord(untimed, 0)
    cuda.cudaDeviceSynchronize()
    with fails(INVALID_HANDLE):
        cuda.elapsed_ms(start, untimed)


@emulated()
def test_priorities_are_kept_within_the_range():
    cuda = Runtime()
    least, greatest, priority = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cudaDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest))
    stream = ctypes.c_void_p()
    wanted = ctypes.c_int(-100)
    cuda.cudaStreamCreateWithPriority(ctypes.byref(stream), 1, wanted)
    cuda.cudaStreamGetPriority(stream, ctypes.byref(priority))
    assert (least.value, greatest.value, priority.value) == (0, -5, -5)
