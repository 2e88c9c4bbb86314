"""For tests of remat itself: looks at, and forces, what the engine decides."""

from __future__ import annotations

import torch

from . import _C


def evict(tensor: torch.Tensor) -> bool:
    """Evict ``tensor``'s storage if it may be; return whether it was."""
    return _C.evict(tensor.untyped_storage())


def evict_all() -> int:
    """Evict everything that may be; return the number of storages."""
    return _C.evict_all()


def is_resident(tensor: torch.Tensor) -> bool:
    return _C.is_resident(tensor.untyped_storage())


def is_managed(tensor: torch.Tensor) -> bool:
    return _C.is_managed(tensor.untyped_storage())


def check_invariants() -> None:
    """Raise ``AssertionError`` if the engine's graph is inconsistent."""
    try:
        _C.check_invariants()
    except RuntimeError as error:
        raise AssertionError(str(error)) from None
