"""The driver's virtual memory, as PyTorch's expandable segments use it."""

from __future__ import annotations

import ctypes
import math
import signal

from emulated_runtime import (
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    PAGE,
    Runtime,
    driver,
    emulated,
    fails,
    signal_of,
)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("rest", ctypes.c_byte * 16),
    )


class _Virtual:
    """What a segment does; calls return CUresult."""

    def __init__(self) -> None:
        self.cuda = driver()

    def reserve(self, size: int) -> int:
        out = ctypes.c_uint64()
        assert self._call("cuMemAddressReserve", ctypes.byref(out), size, 0, 0, 0) == 0
        return out.value

    def create(self, size: int, device: int = 0) -> tuple[int, int]:
        prop = _AllocationProp(1, 0, _Location(1, device))
        out = ctypes.c_uint64()
        code = self._call("cuMemCreate", ctypes.byref(out), size, ctypes.byref(prop), 0)
        return code, out.value

    def map(self, address: int, size: int, handle: int) -> int:
        return self._call("cuMemMap", address, size, 0, handle, 0)

    def allow(self, address: int, size: int) -> int:
        return self._call("cuMemSetAccess", address, size, None, 1)

    def unmap(self, address: int, size: int) -> int:
        return self._call("cuMemUnmap", address, size)

    def release(self, handle: int) -> int:
        return self._call("cuMemRelease", handle)

    def unreserve(self, address: int, size: int) -> int:
        return self._call("cuMemAddressFree", address, size)

    def _call(self, name: str, *arguments: object) -> int:
        words = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        return getattr(self.cuda, name)(*words)


@emulated(capacity="8MiB")
def test_pages_are_mapped_one_by_one_and_used_as_one():
    cuda, virtual = Runtime(), _Virtual()
    base = virtual.reserve(64 * MIB)
    assert cuda.free_bytes() == 8 * MIB
    for page in range(2):
        code, handle = virtual.create(PAGE)
        assert code == 0
        assert virtual.map(base + page * PAGE, PAGE, handle) == 0
    assert virtual.allow(base, 2 * PAGE) == 0
    assert cuda.free_bytes() == 8 * MIB - 2 * PAGE
    cuda.upload(base + PAGE - 4, b"12345678")
    assert cuda.download(base + PAGE - 4, 8) == b"12345678"
    with fails(ILLEGAL_ADDRESS):
        cuda.cudaMemset(base + PAGE, 0, PAGE + 1)


@emulated(capacity="4MiB")
def test_physical_memory_counts_against_the_capacity():
    cuda, virtual = Runtime(), _Virtual()
    _, first = virtual.create(PAGE)
    virtual.create(PAGE)
    assert virtual.create(PAGE)[0] == OUT_OF_MEMORY
    assert virtual.release(first) == 0
    cuda.library.emulatedCudaFailAllocations(0, 0, 1)
    assert virtual.create(PAGE)[0] == OUT_OF_MEMORY
    assert virtual.create(PAGE)[0] == 0


@emulated()
def test_released_memory_lives_until_it_is_unmapped():
    cuda, virtual = Runtime(), _Virtual()
    before = cuda.free_bytes()
    base = virtual.reserve(PAGE)
    _, handle = virtual.create(PAGE)
    virtual.map(base, PAGE, handle)
    virtual.allow(base, PAGE)
    assert virtual.release(handle) == 0
    cuda.upload(base, b"12345678")
    assert cuda.free_bytes() == before - PAGE
    assert virtual.unmap(base, PAGE) == 0
    assert cuda.free_bytes() == before
    assert signal_of(lambda: ctypes.string_at(base, 8)) == signal.SIGSEGV
    with fails(ILLEGAL_ADDRESS, "not allocated"):
        cuda.cudaMemset(base, 0, 8)


@emulated()
def test_mapped_memory_needs_access():
    virtual = _Virtual()
    base = virtual.reserve(PAGE)
    _, handle = virtual.create(PAGE)
    virtual.map(base, PAGE, handle)
    assert signal_of(lambda: ctypes.string_at(base, 8)) == signal.SIGSEGV
    virtual.allow(base, PAGE)
    assert signal_of(lambda: ctypes.string_at(base, 8)) == 0


@emulated()
def test_mistakes_are_errors():
    virtual = _Virtual()
    base = virtual.reserve(2 * PAGE)
    _, handle = virtual.create(PAGE)
    assert virtual.create(PAGE + 1)[0] == INVALID_VALUE
    assert virtual.create(PAGE, device=3)[0] == INVALID_VALUE
    assert virtual.allow(base, PAGE) == INVALID_VALUE  # nothing is mapped
    assert virtual.map(base + 2 * PAGE, PAGE, handle) == INVALID_VALUE
    assert virtual.map(base, PAGE, handle) == 0
    assert virtual.map(base + PAGE, PAGE, handle) == INVALID_VALUE  # twice
    assert virtual.map(base, PAGE, virtual.create(PAGE)[1]) == INVALID_VALUE
    assert virtual.allow(base, 2 * PAGE) == INVALID_VALUE
    assert virtual.unreserve(base, 2 * PAGE) == INVALID_VALUE  # still mapped
    assert virtual.unmap(base, 2 * PAGE) == INVALID_VALUE
    assert virtual.unmap(base, PAGE) == 0
    assert virtual.unreserve(base, 2 * PAGE) == 0
    assert virtual.release(handle) == 0
    assert virtual.release(handle) == INVALID_VALUE


@emulated(devices=2, capacity="4MiB")
def test_segments_come_and_go_without_using_up_addresses():
    virtual = _Virtual()
    for _ in range(300):
        base = virtual.reserve(4 * MIB)
        _, handle = virtual.create(PAGE)
        assert virtual.map(base, PAGE, handle) == 0
        virtual.allow(base, PAGE)
        virtual.unmap(base, PAGE)
        virtual.release(handle)
        assert virtual.unreserve(base, 4 * MIB) == 0


@emulated(timing=1, launch_ns=0)
def test_each_mapping_keeps_the_host_busy():
    # 29 + 2 + 38 us to map a page, of any size; 34 + 23 us to give it back.
    cuda, virtual = Runtime(), _Virtual()
    base = virtual.reserve(6 * PAGE)
    times = [cuda.recorded(0)]
    handles = [virtual.create(2 * PAGE)[1] for _ in range(3)]
    for i, handle in enumerate(handles):
        virtual.map(base + 2 * i * PAGE, 2 * PAGE, handle)
    virtual.allow(base, 6 * PAGE)
    times.append(cuda.recorded(0))
    virtual.unmap(base, 6 * PAGE)
    for handle in handles:
        virtual.release(handle)
    times.append(cuda.recorded(0))
    cuda.cudaDeviceSynchronize()
    mapping, giving_back = map(cuda.elapsed_ms, times, times[1:])
    assert math.isclose(mapping, 3 * 0.069, abs_tol=1e-4)
    assert math.isclose(giving_back, 3 * 0.057, abs_tol=1e-4)
