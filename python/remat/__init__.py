"""Train within a memory budget: activations are evicted and replayed when read.

    >>> import torch
    >>> torch.cuda.remat.enable("8GiB")
    >>> train()  # unchanged

While enabled, storages that recorded ops produced are evicted when memory runs
short, by the policy's choice, and rematerialized by replaying those ops when
something reads them. Losses, gradients and buffers are bit-identical to a run
without it wherever the ops themselves are deterministic.
"""

from ._build_info import version as __version__
from ._config import parse_bytes
from ._session import (
    budget,
    disable,
    enable,
    is_enabled,
    pin,
    policies,
    set_budget,
    unpin,
)
from ._stats import (
    max_memory_allocated,
    memory_allocated,
    reset_peak_memory_stats,
    reset_stats,
    Stats,
    stats,
    summary,
)
from ._trace import record_trace


__all__ = [
    "Stats",
    "__version__",
    "budget",
    "disable",
    "enable",
    "is_enabled",
    "max_memory_allocated",
    "memory_allocated",
    "parse_bytes",
    "pin",
    "policies",
    "record_trace",
    "reset_peak_memory_stats",
    "reset_stats",
    "set_budget",
    "stats",
    "summary",
    "unpin",
]
