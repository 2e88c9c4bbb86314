"""Counters of memory and time: the malloc meter on the CPU, the allocator on a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("meter.c")
BUILD = Path(__file__).resolve().parents[3] / "build" / "peers"


def compiled_meter() -> Path:
    """Return the library to preload, compiled if this version of it is not there."""
    text = SOURCE.read_bytes()
    library = BUILD / f"meter-{hashlib.sha256(text).hexdigest()[:12]}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", SOURCE, "-o", unfinished], check=True
        )
        unfinished.rename(library)
    return library


@dataclass(frozen=True)
class Reading:
    """What one step took: seconds and bytes beyond those held before it."""

    wall_s: float
    cpu_s: float  # of all threads of the process; 0 in timing mode
    peak_bytes: int
    held_bytes: int  # before it: parameters, gradients, optimizer state, batch, code


class HeapCounter:
    """Reads the preloaded meter and the process's clocks."""

    def __init__(self) -> None:
        """What is held now is not counted in ``held_bytes``."""
        self._library = ctypes.CDLL(None)
        for name in ("meter_live_bytes", "meter_peak_bytes"):
            getattr(self._library, name).restype = ctypes.c_long
        self._start = self._library.meter_live_bytes()

    def live_bytes(self) -> int:
        return int(self._library.meter_live_bytes())

    def begin(self) -> None:
        self._library.meter_reset()
        self._held = self._library.meter_live_bytes()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def end(self) -> Reading:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        peak = self._library.meter_peak_bytes() - self._held
        return Reading(wall, cpu, peak, self._held - self._start)


class DeviceCounter:
    """Reads the caching allocator's counters and the device's clock.

    The peak is of bytes allocated, not reserved: gaps between blocks count against
    no method that is measured by it. A budget of ours bounds the bytes reserved.
    """

    def begin(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._held = torch.cuda.memory_allocated()
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)
        self._start.record()

    def end(self) -> Reading:
        self._stop.record()
        torch.cuda.synchronize()
        seconds = self._start.elapsed_time(self._stop) / 1e3
        peak = torch.cuda.max_memory_allocated() - self._held
        return Reading(seconds, 0.0, peak, self._held)
