"""What remat did and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

import torch

from . import _C
from ._config import format_bytes
from ._devices import Device, meant_device, meant_devices, slot


@dataclass(frozen=True)
class Stats:
    """Counted since :func:`reset_stats`, but for what there is now (``now``).

    Sizes are bytes, times nanoseconds.
    """

    ops_captured: int  #: ops that reached the engine
    evictions: int  #: storages evicted
    #: of those, for a request that the free bytes of the GPU's allocator would have
    #: served, had they lain together
    fragmentation_evictions: int
    #: of what a GPU's allocator had reserved, free but of no use for the requests that
    #: memory was evicted for: the mean over those, from 0 to 1
    fragmentation: float
    moves: int  #: storages moved in a GPU's memory so that neighboring bytes were free
    moved_bytes: int  #: their bytes
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
    bytes_now: int  #: live bytes of the CPU's allocator, reserved ones of a GPU's, now
    bytes_peak: int  #: the most of those since reset_peak_memory_stats
    budget_bytes: Optional[int]  #: now; None: no limit
    resident_bytes: int  #: managed and present, now
    evicted_bytes: int  #: managed and not present, now
    evictable_bytes: int  #: could be evicted now
    pinned_bytes: int  #: kept by ops that run or by pin(), now
    leaf_bytes: int  #: nothing can rematerialize them, now
    escaped_bytes: int  #: their address is known outside, now
    held_bytes: int  #: dead for the program, kept for replay, now
    #: of a GPU's allocator: the most neighboring bytes that are free or evictable, now
    largest_hole_bytes: int
    storages: int  #: versions in the graph, now
    op_records: int  #: now
    #: the kind of iteration whose plan decides now; None: no plan does
    plan_in_use: Optional[int]
    plan_search: bool  #: a search for a plan is under way, now
    iteration_kinds: int  #: that the policy knows, now
    plans_tried: int  #: candidates simulated since enable()
    plans_adopted: int  #: plans made from those and taken over since enable()
    planner_bytes: int  #: host memory of what is known of iterations, about


def _memory(target: torch.device) -> Tuple[int, int]:
    if target.type == "cuda" and not torch.cuda.is_initialized():
        return (0, 0)
    return _C.memory(slot(target))


def stats(device: Device = None) -> Stats:
    """Return counters and sizes; see :class:`Stats`. All zero if never enabled."""
    target = meant_device(device)
    now, peak = _memory(target)
    return Stats(
        bytes_now=now,
        bytes_peak=peak,
        budget_bytes=_C.current_budget(slot(target)),
        **_C.counters(slot(target)),
        **_C.census(slot(target)),
    )


def reset_stats(device: Device = None) -> None:
    """Start counting again."""
    for target in meant_devices(device):
        _C.reset_counters(slot(target))


def memory_allocated(device: Device = None) -> int:
    """Return what a budget bounds, remat on or off: bytes live on the CPU, bytes
    that the caching allocator has reserved on a GPU."""
    return _memory(meant_device(device))[0]


def max_memory_allocated(device: Device = None) -> int:
    """Return the most of them since :func:`reset_peak_memory_stats`."""
    return _memory(meant_device(device))[1]


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start :func:`max_memory_allocated` again from what is in use now."""
    for target in meant_devices(device):
        if target.type == "cpu" or torch.cuda.is_initialized():
            _C.reset_memory_peak(slot(target))


def summary(device: Device = None) -> str:
    """Return :func:`stats` as a table, as ``torch.cuda.memory_summary`` does."""
    target = meant_device(device)
    s = stats(target)
    rows = [
        (
            "budget",
            "no limit" if s.budget_bytes is None else format_bytes(s.budget_bytes),
        ),
        ("in use", format_bytes(s.bytes_now)),
        ("peak in use", format_bytes(s.bytes_peak)),
        None,
        ("managed, resident", format_bytes(s.resident_bytes)),
        ("  evictable", format_bytes(s.evictable_bytes)),
        ("  pinned", format_bytes(s.pinned_bytes)),
        ("  leaf", format_bytes(s.leaf_bytes)),
        ("  escaped", format_bytes(s.escaped_bytes)),
        ("held for replay", format_bytes(s.held_bytes)),
        ("evicted", format_bytes(s.evicted_bytes)),
        ("largest hole", format_bytes(s.largest_hole_bytes)),
        None,
        ("ops captured", f"{s.ops_captured}"),
        ("evictions", f"{s.evictions}"),
        ("  for want of neighbors", f"{s.fragmentation_evictions}"),
        ("fragmentation", f"{s.fragmentation:.1%}"),
        ("moves", f"{s.moves}"),
        ("  bytes", format_bytes(s.moved_bytes)),
        ("replays", f"{s.replays}"),
        ("recompute time", f"{s.recompute_ns / 1e6:.1f} ms"),
        ("overhead", f"{s.overhead_ns / 1e6:.1f} ms"),
        ("longest replay plan", f"{s.max_replay_depth} ops"),
        ("accesses outside ops", f"{s.faults}"),
        ("out-of-memory errors", f"{s.ooms}"),
        ("storages / op records", f"{s.storages} / {s.op_records}"),
        None,
        ("plan in use", "none" if s.plan_in_use is None else f"{s.plan_in_use}"),
        ("kinds of iterations", f"{s.iteration_kinds}"),
        ("plans tried / adopted", f"{s.plans_tried} / {s.plans_adopted}"),
        ("planner's memory", format_bytes(s.planner_bytes)),
    ]
    if s.not_replayable:
        rows += [None, ("ops not replayable", f"{sum(s.not_replayable.values())}")]
        rows += [(f"  {why}", f"{n}") for why, n in sorted(s.not_replayable.items())]
    left = max(len(row[0]) for row in rows if row)
    right = max(len(row[1]) for row in rows if row)
    line = "|" + "-" * (left + 2) + "|" + "-" * (right + 2) + "|"
    state = (
        f"policy {_C.current_policy(slot(target))}"
        if _C.is_enabled(slot(target))
        else "not enabled"
    )
    title = f"torch.cuda.remat on {target}, {state}"
    body = [
        f"| {row[0]:<{left}} | {row[1]:>{right}} |" if row else line for row in rows
    ]
    return "\n".join([title, line, *body, line])
