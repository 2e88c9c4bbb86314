"""Settings: budgets as people write them, and the one look at the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Optional, Union


Limit = Union[int, float, str, None]

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_MOST_BYTES = 2**63 - 1
_ACCEPTED = (
    "accepted are bytes (8589934592), sizes with a unit (8GiB, 500MB; KB is 1000 "
    "bytes, KiB is 1024) and a share of the device's memory (80%)"
)


@dataclass(frozen=True)
class Environment:
    """What the environment asks for; an argument wins over it."""

    budget: Optional[str]
    chaos: bool
    windows: bool
    smallest_managed: Optional[int]
    planner_share: Optional[float]

    @classmethod
    def read(cls) -> Environment:
        chaos = _switch("PYTORCH_REMAT_CHAOS", default=False)
        # Chaos is for finding faults, and those hide in small tensors too.
        smallest = os.environ.get("PYTORCH_REMAT_SMALLEST") or ("1" if chaos else None)
        return cls(
            budget=os.environ.get("PYTORCH_REMAT_BUDGET") or None,
            chaos=chaos,
            windows=_switch("PYTORCH_REMAT_WINDOWS", default=True),
            smallest_managed=None if smallest is None else parse_bytes(smallest),
            planner_share=_share("PYTORCH_REMAT_PLANNER_SHARE"),
        )


def _share(name: str) -> Optional[float]:
    text = os.environ.get(name)
    if not text:
        return None
    percent = _SHARE.fullmatch(text)
    number = percent[1] if percent else text
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be a share such as 0.1 or 10%, got {text!r}")
    return share


def _switch(name: str, *, default: bool) -> bool:
    value = os.environ.get(name, "")
    if value not in ("0", "1", ""):
        raise ValueError(f"{name} must be 0 or 1, got {value!r}")
    return value == "1" if value else default


def parse_bytes(text: Union[int, str], *, total: Optional[int] = None) -> int:
    """Return the bytes that ``text`` stands for.

    Args:
        text: bytes as an ``int``, or a size such as ``"8GiB"``, ``"500MB"``,
            ``"1.5 GiB"``, ``"4096"``, or ``"80%"`` of ``total``.
        total: what a percentage is of, in bytes.

    Raises:
        ValueError: if ``text`` is none of these, or not positive.
        TypeError: if ``text`` is neither an ``int`` nor a ``str``.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise TypeError(f"a size must be an int or a str, got {text!r}")
    if isinstance(text, int):
        result = text
    elif share := _SHARE.fullmatch(text):
        if total is None:
            raise ValueError(f"{text!r} is a share of nothing; {_ACCEPTED}")
        percent = float(share[1])
        if percent > 100:
            raise ValueError(f"a share of memory is at most 100%, got {text!r}")
        result = int(total * percent / 100)
    else:
        size = _SIZE.fullmatch(text)
        if size is None or size[2] not in _UNITS:
            raise ValueError(f"cannot read {text!r} as a size; {_ACCEPTED}")
        count = float(size[1]) * _UNITS[size[2]]
        result = int(min(count, _MOST_BYTES + 1))
    if result <= 0:
        raise ValueError(f"a size must be positive, got {text!r}")
    if result > _MOST_BYTES:
        raise ValueError(f"no device has as much memory as {text!r}")
    return result


def format_bytes(count: int) -> str:
    """Return ``count`` bytes in the largest unit that leaves a whole one: 1.50 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"


def budget_bytes(limit: Limit, device_total: int) -> Optional[int]:
    """Return the budget in bytes; ``None`` where there is no limit."""
    if limit is None:
        return None
    if isinstance(limit, float):
        if limit == float("inf"):
            return None
        raise ValueError(f"a budget must be whole bytes or a size, got {limit!r}")
    return parse_bytes(limit, total=device_total)
