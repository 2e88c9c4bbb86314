"""Device memory, pinned memory and copies of the stand-in runtime."""

from __future__ import annotations

import ctypes
import pathlib
import signal

from emulated_runtime import (
    ALREADY_REGISTERED,
    ANY_KIND,
    ILLEGAL_ADDRESS,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    NO_DEVICE,
    OUT_OF_MEMORY,
    PAGE,
    TO_DEVICE,
    TO_HOST,
    PointerAttributes,
    Runtime,
    emulated,
    fails,
    run_alone,
    signal_of,
)

_HERE = pathlib.Path(__file__).parent


@emulated(capacity="8MiB")
def test_allocations_stop_at_the_capacity():
    cuda = Runtime()
    kept = [cuda.malloc(PAGE) for _ in range(4)]
    with fails(OUT_OF_MEMORY, "out of memory"):
        cuda.malloc(1)
    cuda.cudaFree(kept[1])
    assert cuda.free_bytes() == PAGE
    cuda.malloc(PAGE)


@emulated(capacity="8MiB")
def test_an_allocation_takes_whole_pages():
    cuda = Runtime()
    cuda.malloc(PAGE + 1)
    assert cuda.free_bytes() == 8 * MIB - 2 * PAGE


@emulated()
def test_allocations_fail_when_told_to():
    cuda = Runtime()
    cuda.library.emulatedCudaFailAllocations(0, 1, 2)
    cuda.malloc(PAGE)
    for _ in range(2):
        with fails(OUT_OF_MEMORY):
            cuda.malloc(PAGE)
    cuda.malloc(PAGE)


@emulated(devices=2, capacity="4MiB")
def test_each_device_has_its_own_capacity():
    cuda = Runtime()
    cuda.malloc(4 * MIB)
    cuda.cudaSetDevice(1)
    assert cuda.free_bytes() == 4 * MIB
    cuda.malloc(4 * MIB)
    with fails(INVALID_DEVICE, "invalid device ordinal"):
        cuda.cudaSetDevice(2)


@emulated()
def test_fresh_memory_holds_no_zeros():
    cuda = Runtime()
    assert cuda.download(cuda.malloc(64), 64) == b"\xfb" * 64


@emulated()
def test_freed_memory_cannot_be_read():
    cuda = Runtime()
    address = cuda.malloc(PAGE)
    assert signal_of(lambda: ctypes.string_at(address, 8)) == 0
    cuda.cudaFree(address)
    assert signal_of(lambda: ctypes.string_at(address, 8)) == signal.SIGSEGV
    with fails(ILLEGAL_ADDRESS, "memcpy reads", "not allocated"):
        cuda.download(address, 8)
    with fails(ILLEGAL_ADDRESS, "relu writes", "not allocated"):
        cuda.launch(0, "relu", writes=[(address, 8)])


@emulated()
def test_access_past_an_allocation_is_an_error():
    cuda = Runtime()
    address = cuda.malloc(PAGE)
    cuda.launch(0, reads=[(address, PAGE)])
    with fails(ILLEGAL_ADDRESS, "not allocated"):
        cuda.launch(0, reads=[(address + PAGE - 4, 8)])


@emulated()
def test_freeing_twice_is_an_error():
    cuda = Runtime()
    address = cuda.malloc(PAGE)
    with fails(INVALID_VALUE):
        cuda.cudaFree(address + 512)
    cuda.cudaFree(address)
    with fails(INVALID_VALUE):
        cuda.cudaFree(address)


@emulated(capacity="4MiB")
def test_addresses_come_back_only_when_all_were_used():
    cuda = Runtime()
    seen = set()
    for _ in range(64):
        address = cuda.malloc(4 * MIB)
        assert address not in seen
        seen.add(address)
        cuda.cudaFree(address)
    for _ in range(64):
        cuda.cudaFree(cuda.malloc(4 * MIB))


@emulated()
def test_blocks_that_the_allocator_took_back_are_poisoned():
    cuda = Runtime()
    address = cuda.malloc(PAGE)
    cuda.upload(address, b"a" * 2048)
    cuda.library.emulatedCudaMarkFree(
        ctypes.c_size_t(address + 512), ctypes.c_size_t(512)
    )
    cuda.launch(0, reads=[(address, 512), (address + 1024, 512)])
    with fails(ILLEGAL_ADDRESS, "relu reads", "a block that was freed"):
        cuda.launch(0, "relu", reads=[(address, 1024)])
    with fails(ILLEGAL_ADDRESS, "memcpy writes", "a block that was freed"):
        cuda.upload(address + 1020, b"12345678")
    cuda.library.emulatedCudaMarkInUse(
        ctypes.c_size_t(address + 512), ctypes.c_size_t(512)
    )
    assert cuda.download(address, 1536) == b"a" * 512 + b"\xfb" * 512 + b"a" * 512


@emulated()
def test_a_block_that_slides_keeps_the_bytes_that_both_places_share():
    cuda = Runtime()
    base = cuda.malloc(PAGE)
    old, new, size = base + 512, base, 1024

    def mark(call: str, address: int) -> None:
        getattr(cuda.library, call)(ctypes.c_size_t(address), ctypes.c_size_t(size))

    mark("emulatedCudaMarkInUse", old)
    cuda.upload(old, b"a" * 512 + b"b" * 512)
    mark("emulatedCudaMarkInUse", new)
    with fails(INVALID_VALUE, "overlap"):
        cuda.cudaMemcpyAsync(new, old, size, ANY_KIND, 0)
    for part in (0, 512):
        cuda.cudaMemcpyAsync(new + part, old + part, 512, ANY_KIND, 0)
    mark("emulatedCudaMarkFree", old)
    assert cuda.download(new, size) == b"a" * 512 + b"b" * 512
    with fails(ILLEGAL_ADDRESS, "a block that was freed"):
        cuda.launch(0, reads=[(new + size, 8)])


@emulated(devices=2)
def test_pointer_attributes():
    cuda = Runtime()
    cuda.cudaSetDevice(1)
    device, pinned = cuda.malloc(64), cuda.pinned(64)
    pageable = ctypes.create_string_buffer(64)
    cuda.cudaSetDevice(0)
    attributes = PointerAttributes()

    def type_of(address):
        cuda.cudaPointerGetAttributes(ctypes.byref(attributes), address)
        return attributes.type

    assert type_of(device + 63) == 2
    assert attributes.device == 1
    assert attributes.device_pointer == device + 63
    assert type_of(pinned + 63) == 1
    assert attributes.host_pointer == pinned + 63
    assert type_of(ctypes.addressof(pageable)) == 0
    cuda.cudaHostRegister(ctypes.addressof(pageable), 64, 0)
    assert type_of(ctypes.addressof(pageable)) == 1
    with fails(ALREADY_REGISTERED):
        cuda.cudaHostRegister(ctypes.addressof(pageable) + 8, 8, 0)
    cuda.cudaHostUnregister(ctypes.addressof(pageable))
    assert type_of(ctypes.addressof(pageable)) == 0
    cuda.cudaFree(device)
    assert type_of(device) == 0


@emulated(devices=2)
def test_copies():
    cuda = Runtime()
    data = bytes(range(64))
    here, stream = cuda.malloc(64), cuda.stream()
    cuda.cudaSetDevice(1)
    there, pinned = cuda.malloc(64), cuda.pinned(64)
    cuda.cudaSetDevice(0)
    cuda.upload(here, data)
    cuda.cudaMemcpyPeerAsync(there, 1, here, 0, 64, stream)
    cuda.cudaMemcpyAsync(pinned, there, 64, TO_HOST, stream)
    cuda.cudaStreamSynchronize(stream)
    assert ctypes.string_at(pinned, 64) == data
    cuda.cudaMemset(here, 7, 8)
    assert cuda.download(here, 64) == b"\7" * 8 + data[8:]


@emulated()
def test_a_copy_of_columns_leaves_the_rest_alone():
    cuda = Runtime()
    matrix = cuda.malloc(64)
    cuda.cudaMemset(matrix, 0, 64)
    # The second column is somebody else's, on another stream.
    cuda.cudaDeviceSynchronize()
    cuda.launch(cuda.stream(), writes=[(matrix + 8, 8)])
    cuda.cudaMemcpy2DAsync(matrix, 16, b"a" * 32, 8, 8, 4, TO_DEVICE, 0)
    assert cuda.download(matrix, 8) == b"a" * 8
    assert cuda.download(matrix + 16, 16) == b"a" * 8 + b"\0" * 8


@emulated()
def test_a_copy_of_the_wrong_kind_is_an_error():
    cuda = Runtime()
    address = cuda.malloc(64)
    with fails(INVALID_VALUE, "another kind"):
        cuda.cudaMemcpy(address, b"1" * 64, 64, TO_HOST)
    cuda.cudaMemcpy(address, b"1" * 64, 64, ANY_KIND)


@emulated(cuda_visible_devices="", devices=2)
def test_no_visible_devices():
    cuda = Runtime()
    count = ctypes.c_int(7)
    with fails(NO_DEVICE, "no CUDA-capable device is detected"):
        cuda.cudaGetDeviceCount(ctypes.byref(count))
    assert count.value == 0
    with fails(NO_DEVICE):
        cuda.malloc(64)


@emulated(cuda_visible_devices="3,1,9,0", devices=4)
def test_visible_devices_end_at_one_that_does_not_exist():
    count = ctypes.c_int()
    Runtime().cudaGetDeviceCount(ctypes.byref(count))
    assert count.value == 2


def test_settings_that_cannot_be_read_end_the_process():
    use = "from emulated_runtime import Runtime; Runtime().malloc(1)"
    code = f"import sys; sys.path.insert(0, {str(_HERE)!r}); {use}"
    for settings, accepted in (
        ({"gpu": "h900"}, "one of test, a100-40gb, h100-80gb, h200"),
        ({"capacity": "1GB"}, "KiB, MiB or GiB"),
        ({"devices": 17}, "a number from 1 to 16"),
        ({"races": "maybe"}, "error, warn or ignore"),
        ({"timing": "no"}, "a number from 0 to 1"),
    ):
        done = run_alone(["-c", code], **settings)
        assert done.returncode == 2
        assert accepted in done.stderr
