"""What remat did and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional

from . import _C
from ._session import Device, managed_device


@dataclass(frozen=True)
class Stats:
    """Counted since :func:`reset_stats`, but for what there is now (``now``).

    Sizes are bytes, times nanoseconds.
    """

    ops_captured: int  #: ops that reached the engine
    evictions: int  #: storages evicted
    replays: int  #: op records run again
    recompute_ns: int  #: recompute cost of those
    #: spent in remat outside the ops and replays: capture, bookkeeping, choosing
    #: victims. An estimate: relief of pressure is measured in full, capture around
    #: one op in 17 of each thread.
    overhead_ns: int
    max_replay_depth: int  #: op records in the longest replay plan
    not_replayable: Dict[str, int]  #: reason -> ops whose outputs are leaves
    faults: int  #: accesses to managed storages outside any op
    ooms: int  #: out-of-memory errors raised
    bytes_now: int  #: live bytes of the device's allocator, now
    bytes_peak: int  #: the most of those since reset_peak_memory_stats
    budget_bytes: Optional[int]  #: now; None: no limit
    resident_bytes: int  #: managed and present, now
    evicted_bytes: int  #: managed and not present, now
    evictable_bytes: int  #: could be evicted now
    pinned_bytes: int  #: kept by ops that run or by pin(), now
    leaf_bytes: int  #: nothing can rematerialize them, now
    escaped_bytes: int  #: their address is known outside, now
    held_bytes: int  #: dead for the program, kept for replay, now
    storages: int  #: versions in the graph, now
    op_records: int  #: now


def stats(device: Device = None) -> Stats:
    """Return counters and sizes; see :class:`Stats`. All zero if never enabled."""
    managed_device(device)
    now, peak = _C.cpu_memory()
    return Stats(
        bytes_now=now,
        bytes_peak=peak,
        budget_bytes=_C.current_budget(),
        **_C.counters(),
        **_C.census(),
    )


def reset_stats(device: Device = None) -> None:
    """Start counting again."""
    managed_device(device)
    _C.reset_counters()


def memory_allocated(device: Device = None) -> int:
    """Return the live bytes of the device's allocator, remat on or off."""
    managed_device(device)
    return _C.cpu_memory()[0]


def max_memory_allocated(device: Device = None) -> int:
    """Return the most live bytes since :func:`reset_peak_memory_stats`."""
    managed_device(device)
    return _C.cpu_memory()[1]


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start :func:`max_memory_allocated` again from the bytes live now."""
    managed_device(device)
    _C.reset_cpu_memory_peak()


def _size(count: Optional[int]) -> str:
    if count is None:
        return "no limit"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"


def summary(device: Device = None) -> str:
    """Return :func:`stats` as a table, as ``torch.cuda.memory_summary`` does."""
    target = managed_device(device)
    s = stats(target)
    rows = [
        ("budget", _size(s.budget_bytes)),
        ("in use", _size(s.bytes_now)),
        ("peak in use", _size(s.bytes_peak)),
        None,
        ("managed, resident", _size(s.resident_bytes)),
        ("  evictable", _size(s.evictable_bytes)),
        ("  pinned", _size(s.pinned_bytes)),
        ("  leaf", _size(s.leaf_bytes)),
        ("  escaped", _size(s.escaped_bytes)),
        ("held for replay", _size(s.held_bytes)),
        ("evicted", _size(s.evicted_bytes)),
        None,
        ("ops captured", f"{s.ops_captured}"),
        ("evictions", f"{s.evictions}"),
        ("replays", f"{s.replays}"),
        ("recompute time", f"{s.recompute_ns / 1e6:.1f} ms"),
        ("overhead", f"{s.overhead_ns / 1e6:.1f} ms"),
        ("longest replay plan", f"{s.max_replay_depth} ops"),
        ("accesses outside ops", f"{s.faults}"),
        ("out-of-memory errors", f"{s.ooms}"),
        ("storages / op records", f"{s.storages} / {s.op_records}"),
    ]
    if s.not_replayable:
        rows += [None, ("ops not replayable", f"{sum(s.not_replayable.values())}")]
        rows += [(f"  {why}", f"{n}") for why, n in sorted(s.not_replayable.items())]
    left = max(len(row[0]) for row in rows if row)
    right = max(len(row[1]) for row in rows if row)
    line = "|" + "-" * (left + 2) + "|" + "-" * (right + 2) + "|"
    state = f"policy {_C.current_policy()}" if _C.is_enabled() else "not enabled"
    title = f"torch.cuda.remat on {target}, {state}"
    body = [
        f"| {row[0]:<{left}} | {row[1]:>{right}} |" if row else line for row in rows
    ]
    return "\n".join([title, line, *body, line])
