"""Stream capture and graphs in the stand-in runtime, and what it refuses."""

from __future__ import annotations

import ctypes
import threading

from emulated_runtime import (
    ANY_KIND,
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED,
    CAPTURED_EVENT,
    GLOBAL,
    ILLEGAL_ADDRESS,
    NOT_SUPPORTED,
    PAGE,
    RELAXED,
    THREAD_LOCAL,
    Runtime,
    emulated,
    fails,
)

NONE, ACTIVE, INVALIDATED = range(3)


def _status(cuda: Runtime, stream: int) -> int:
    status = ctypes.c_int(-1)
    cuda.cudaStreamIsCapturing(stream, ctypes.byref(status))
    return status.value


@emulated()
def test_captured_work_runs_in_order_at_each_launch():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    said = []
    assert _status(cuda, a) == NONE
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    assert _status(cuda, a) == ACTIVE
    cuda.capture(a, lambda at: said.append(("first", at)))
    cuda.capture(a, lambda at: said.append(("second", at)))
    graph = cuda.end_capture(a)
    assert _status(cuda, a) == NONE
    assert said == []
    exec_ = cuda.instantiate(graph)
    cuda.cudaGraphDestroy(graph)
    for stream in (a, b):
        cuda.cudaGraphLaunch(exec_, stream)
    assert said == [("first", a), ("second", a), ("first", b), ("second", b)]


@emulated()
def test_copies_are_captured_too():
    cuda = Runtime()
    a, x, pinned = cuda.stream(), cuda.malloc(8), cuda.pinned(8)
    cuda.upload(x, b"12345678")
    ctypes.memset(pinned, 0, 8)
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    cuda.cudaMemcpyAsync(pinned, x, 8, ANY_KIND, a)
    cuda.cudaMemsetAsync(x, 0, 4, a)
    exec_ = cuda.instantiate(cuda.end_capture(a))
    assert ctypes.string_at(pinned, 8) == b"\0" * 8
    cuda.cudaGraphLaunch(exec_, a)
    assert ctypes.string_at(pinned, 8) == b"12345678"
    cuda.cudaGraphLaunch(exec_, a)
    assert ctypes.string_at(pinned, 8) == b"\0\0\0\x005678"


@emulated()
def test_a_closure_ends_with_the_last_that_holds_it():
    cuda = Runtime()
    a = cuda.stream()
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    ended = cuda.capture(a, lambda at: None)
    graph = cuda.end_capture(a)
    exec_ = cuda.instantiate(graph)
    cuda.cudaGraphDestroy(graph)
    assert not ended
    cuda.cudaGraphExecDestroy(exec_)
    assert ended == ["destroyed"]


@emulated()
def test_a_stream_that_waits_for_a_captured_event_joins():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    said = []
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    cuda.cudaStreamWaitEvent(b, cuda.recorded(a), 0)
    assert _status(cuda, b) == ACTIVE
    cuda.capture(b, lambda at: said.append(at))
    cuda.cudaStreamWaitEvent(a, cuda.recorded(b), 0)
    exec_ = cuda.instantiate(cuda.end_capture(a))
    assert _status(cuda, b) == NONE
    cuda.cudaGraphLaunch(exec_, a)
    assert said == [a]


@emulated()
def test_work_that_gives_no_closure_invalidates_the_capture():
    cuda = Runtime()
    a = cuda.stream()
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    with fails(CAPTURE_UNSUPPORTED, "sort cannot be captured"):
        cuda.launch(a, "sort")
    assert _status(cuda, a) == INVALIDATED
    with fails(CAPTURE_INVALIDATED, "sort cannot be captured"):
        cuda.end_capture(a)
    assert _status(cuda, a) == NONE
    cuda.launch(a, "sort")


@emulated()
def test_the_host_cannot_wait_for_a_capture():
    cuda = Runtime()
    a = cuda.stream()
    for wait in (
        lambda: cuda.cudaStreamSynchronize(a),
        lambda: cuda.cudaStreamQuery(a),
        lambda: cuda.cudaDeviceSynchronize(),
        lambda: cuda.cudaMemcpy(cuda.pinned(8), cuda.pinned(8), 8, ANY_KIND),
    ):
        cuda.cudaStreamBeginCapture(a, GLOBAL)
        with fails(CAPTURE_UNSUPPORTED):
            wait()
        with fails(CAPTURE_INVALIDATED):
            cuda.end_capture(a)


@emulated()
def test_memory_is_allocated_during_a_capture_only_where_its_mode_allows():
    cuda = Runtime()
    a = cuda.stream()
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    with fails(CAPTURE_UNSUPPORTED, "cudaMalloc"):
        cuda.malloc(PAGE)
    with fails(CAPTURE_INVALIDATED):
        cuda.end_capture(a)
    mode = ctypes.c_int(RELAXED)
    cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    assert mode.value == GLOBAL
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    cuda.malloc(PAGE)
    cuda.end_capture(a)


@emulated()
def test_a_thread_local_capture_forbids_on_its_own_thread():
    cuda = Runtime()
    a = cuda.stream()
    cuda.cudaStreamBeginCapture(a, THREAD_LOCAL)
    thread = threading.Thread(target=cuda.malloc, args=(PAGE,))
    thread.start()
    thread.join()
    assert _status(cuda, a) == ACTIVE
    with fails(CAPTURE_UNSUPPORTED):
        cuda.malloc(PAGE)
    with fails(CAPTURE_INVALIDATED):
        cuda.end_capture(a)


@emulated()
def test_captures_that_end_or_wait_elsewhere_are_errors():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    cuda.launch(b)
    before = cuda.recorded(b)
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    with fails(CAPTURE_ISOLATION):
        cuda.cudaStreamWaitEvent(a, before, 0)
    with fails(CAPTURE_INVALIDATED):
        cuda.end_capture(a)
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    cuda.cudaStreamWaitEvent(b, cuda.recorded(a), 0)
    with fails(CAPTURE_UNMATCHED):
        cuda.end_capture(b)
    with fails(CAPTURE_INVALIDATED):
        cuda.end_capture(a)
    with fails(CAPTURE_UNSUPPORTED):
        cuda.cudaStreamBeginCapture(0, GLOBAL)


@emulated()
def test_a_graph_that_fails_says_so_and_stops():
    cuda = Runtime()
    a, x = cuda.stream(), cuda.malloc(PAGE)
    said = []
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    cuda.cudaMemsetAsync(x, 0, 64, a)
    cuda.capture(a, lambda at: said.append(at))
    exec_ = cuda.instantiate(cuda.end_capture(a))
    cuda.cudaGraphLaunch(exec_, a)
    cuda.cudaFree(x)
    with fails(ILLEGAL_ADDRESS, "memset writes"):
        cuda.cudaGraphLaunch(exec_, a)
    assert said == [a]


@emulated()
def test_an_earlier_error_is_not_the_graphs():
    cuda = Runtime()
    a = cuda.stream()
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    exec_ = cuda.instantiate(cuda.end_capture(a))
    assert cuda.library.cudaSetDevice(9) != 0
    cuda.cudaGraphLaunch(exec_, a)
    assert cuda.library.cudaGetLastError() != 0


@emulated()
def test_a_replay_may_touch_blocks_that_its_pool_keeps():
    cuda = Runtime()
    a, x = cuda.stream(), cuda.malloc(PAGE)
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    cuda.cudaMemsetAsync(x, 0, 512, a)
    exec_ = cuda.instantiate(cuda.end_capture(a))
    cuda.library.emulatedCudaMarkFree(ctypes.c_size_t(x), ctypes.c_size_t(512))
    cuda.cudaGraphLaunch(exec_, a)
    with fails(ILLEGAL_ADDRESS, "a block that was freed"):
        cuda.cudaMemsetAsync(x, 0, 512, a)


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


@emulated()
def test_a_real_kernel_is_refused_by_its_name():
    cuda = Runtime()
    kernel = ctypes.c_void_p(cuda.malloc(1))  # any address
    cuda.library["__cudaRegisterFunction"](
        None, kernel, None, b"softmax_warp_forward", -1, *[None] * 5
    )
    with fails(NOT_SUPPORTED, "kernel softmax_warp_forward is not supported"):
        cuda.cudaLaunchKernel(kernel, _Dim3(), _Dim3(), None, 0, None)


@emulated()
def test_an_event_of_a_capture_is_nobody_elses():
    cuda = Runtime()
    a, b = cuda.stream(), cuda.stream()
    cuda.cudaStreamBeginCapture(a, GLOBAL)
    event = cuda.recorded(a)
    cuda.end_capture(a)
    with fails(CAPTURED_EVENT):
        cuda.cudaStreamWaitEvent(b, event, 0)
    with fails(CAPTURED_EVENT):
        cuda.cudaEventQuery(event)
    with fails(CAPTURED_EVENT):
        cuda.cudaEventSynchronize(event)
    cuda.cudaEventRecord(event, b)
    cuda.cudaEventSynchronize(event)


@emulated()
def test_what_is_not_emulated_is_refused_by_its_name():
    cuda = Runtime()
    for name in ("cudaMallocAsync", "cudaIpcGetMemHandle", "cudaMemPoolTrimTo"):
        with fails(NOT_SUPPORTED, "operation not supported", name):
            getattr(cuda, name)(None, None)
