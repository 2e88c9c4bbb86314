"""The stand-in CUDA runtime through ctypes, for tests of it alone.

A test that is marked with :func:`emulated` runs in a process of its own, since the
runtime reads its settings once. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

MIB = 1 << 20
PAGE = 2 * MIB  # what a device gives at once

# cudaError_t and CUresult
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
ILLEGAL_STATE = 401
NOT_READY = 600
ILLEGAL_ADDRESS = 700
ALREADY_REGISTERED = 712
NOT_SUPPORTED = 801
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_UNMATCHED = 903
CAPTURE_ISOLATION = 905
CAPTURED_EVENT = 907

# cudaMemcpyKind
TO_DEVICE = 1
TO_HOST = 2
ANY_KIND = 4

NON_BLOCKING = 1
NO_TIMING = 2  # a flag of an event
GLOBAL, THREAD_LOCAL, RELAXED = range(3)


def folder() -> Path:
    """Where ``with_env.sh --emulate-cuda`` built the stand-ins."""
    return Path(os.environ["EMULATED_CUDA_EXECUTOR"]).parent


def run_alone(
    command: Sequence[str], **settings: object
) -> subprocess.CompletedProcess[str]:
    """Run Python with these settings of the device and no others."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EMULATED_CUDA_") or name == "EMULATED_CUDA_EXECUTOR"
    }
    for name, value in settings.items():
        upper = name.upper()
        prefix = "" if upper.startswith("CUDA_") else "EMULATED_CUDA_"
        variables[prefix + upper] = str(value)
    return subprocess.run(
        [sys.executable, *command],
        env=variables,
        text=True,
        capture_output=True,
        timeout=60,
    )


def emulated(**settings: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Run a test in a process of its own whose devices have these settings."""

    def decorate(test: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(test)
        def in_child() -> None:
            file = Path(test.__code__.co_filename)
            code = (
                f"import sys; sys.path.insert(0, {str(file.parent)!r})\n"
                f"import {file.stem} as tests\n"
                f"tests.{test.__name__}.__wrapped__()"
            )
            done = run_alone(["-c", code], **settings)
            assert done.returncode == 0, done.stderr

        return in_child

    return decorate


class CudaError(Exception):
    """A call returned an error."""

    def __init__(self, code: int, call: str, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.code = code


@contextlib.contextmanager
def fails(code: int, *words: str) -> Iterator[None]:
    """Expect the error ``code``, with ``words`` in its text."""
    found: CudaError | None = None
    try:
        yield
    except CudaError as error:
        found = error
    assert found is not None, f"no error; expected {code}"
    assert found.code == code, f"{found} is {found.code}, not {code}"
    for word in words:
        assert word in str(found), f"'{word}' is not in '{found}'"


class Access(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("is_write", ctypes.c_int),
    )


class PointerAttributes(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
    )


Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
Destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Runtime:
    """libcudart, with errors as exceptions. Integers are sizes or addresses."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(folder() / "libcudart.so.12"))
        self.library.cudaGetErrorString.restype = ctypes.c_char_p
        self.library.emulatedCudaReport.restype = ctypes.c_char_p
        self._closures: list[object] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self.library, name)

        def call(*arguments: object) -> None:
            words = [ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments]
            code = function(*words)
            if code != 0:
                self.library.cudaGetLastError()
                text = self.library.cudaGetErrorString(code).decode()
                raise CudaError(code, name, text)

        return call

    def _made(self, name: str, *arguments: object) -> int:
        out = ctypes.c_void_p()
        getattr(self, name)(ctypes.byref(out), *arguments)
        return out.value or 0

    def malloc(self, size: int) -> int:
        return self._made("cudaMalloc", size)

    def pinned(self, size: int) -> int:
        return self._made("cudaHostAlloc", size, 0)

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        return free.value

    def upload(self, address: int, data: bytes) -> None:
        self.cudaMemcpy(address, data, len(data), TO_DEVICE)

    def download(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.cudaMemcpy(buffer, address, size, TO_HOST)
        return buffer.raw

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self._made("cudaStreamCreateWithFlags", flags)

    def event(self, flags: int = 0) -> int:
        return self._made("cudaEventCreateWithFlags", flags)

    def recorded(self, stream: int) -> int:
        """A new event, recorded on ``stream``."""
        event = self.event()
        self.cudaEventRecord(event, stream)
        return event

    def is_done(self, event: int) -> bool:
        code = self.library.cudaEventQuery(ctypes.c_size_t(event))
        assert code in (0, NOT_READY)
        return code == 0

    def elapsed_ms(self, start: int, end: int) -> float:
        out = ctypes.c_float()
        self.cudaEventElapsedTime(ctypes.byref(out), start, end)
        return out.value

    def launch(
        self,
        stream: int,
        name: str = "op",
        reads: Sequence[tuple[int, int]] = (),
        writes: Sequence[tuple[int, int]] = (),
        ns: float = 0,
    ) -> None:
        """Say that an op ran; ``reads`` and ``writes`` are (address, size)."""
        touched = [(*r, 0) for r in reads] + [(*w, 1) for w in writes]
        array = (Access * len(touched))(*touched)
        self.emulatedCudaLaunch(stream, name.encode(), array, len(touched))
        self.library.emulatedCudaElapse(ctypes.c_size_t(stream), ctypes.c_double(ns))

    def capture(self, stream: int, run: Callable[[int], None]) -> list[str]:
        """Give a closure to the capture of ``stream``; returns what became of it."""
        ended: list[str] = []
        callbacks = (
            Run(lambda _, at: run(at or 0)),
            Destroy(lambda _: ended.append("destroyed")),
        )
        self._closures.append(callbacks)
        self.emulatedCudaCapture(stream, *callbacks, None)
        return ended

    def end_capture(self, stream: int) -> int:
        out = ctypes.c_void_p()
        self.cudaStreamEndCapture(stream, ctypes.byref(out))
        return out.value or 0

    def instantiate(self, graph: int) -> int:
        return self._made("cudaGraphInstantiateWithFlags", graph, 0)


def driver() -> ctypes.CDLL:
    """libcuda; its calls return a CUresult."""
    return ctypes.CDLL(str(folder() / "libcuda.so.1"))


def signal_of(action: Callable[[], object]) -> int:
    """The signal that ends a process which does ``action``; 0: none."""
    child = os.fork()
    if child == 0:
        action()
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])
