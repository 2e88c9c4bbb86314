"""Turning rematerialization on and off, and what the program asks of it."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Optional, Tuple, Union

import torch

from . import _access, _C
from ._config import budget_bytes, Environment, Limit


Device = Union[str, int, "torch.device", None]


def managed_device(device: Device) -> torch.device:
    """Return the device that ``device`` names, if it can be managed."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    result = (
        torch.device("cuda", device)
        if isinstance(device, int)
        else torch.device(device)
    )
    if result.type != "cpu":
        raise NotImplementedError(
            f"remat manages the CPU only in this version, got {result}; "
            "pass device='cpu'"
        )
    return result


def _total_memory(device: torch.device) -> int:
    # The machine's memory, or the container's share of it.
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def enable(
    budget: Limit = None, *, device: Device = None, policy: Optional[str] = None
) -> None:
    """Keep ``device`` within ``budget`` from now on.

    Covers all threads. Enabling again changes the budget and, where one is
    given, the policy.

    Args:
        budget: the most bytes in use on the device, as :func:`parse_bytes`
            reads them; default: the environment variable
            ``PYTORCH_REMAT_BUDGET``, and without it no limit.
        device: default: the GPU where there is one, else the CPU.
        policy: a name from :func:`policies`; default: the best one there is.

    Raises:
        ValueError: if the budget cannot be read or the policy is unknown.
        NotImplementedError: if the device cannot be managed.

    A budget below what is in use is not an error: nothing is lost, and the
    first allocation that does not fit raises ``torch.OutOfMemoryError``.
    """
    environment = Environment.read()
    target = managed_device(device)
    limit = environment.budget if budget is None else budget
    limit_bytes = budget_bytes(limit, _total_memory(target))
    if policy is None:
        policy = _C.current_policy()
    _access.install()
    _C.enable(limit_bytes, policy, environment.chaos, environment.smallest_managed)


def disable() -> None:
    """Bring everything evicted back, whatever the budget, and stop.

    No effect while disabled.
    """
    _C.disable()


def is_enabled(device: Device = None) -> bool:
    """Return whether ``device`` is kept within a budget."""
    managed_device(device)
    return _C.is_enabled()


@contextlib.contextmanager
def budget(
    limit: Limit = None, *, device: Device = None, policy: Optional[str] = None
) -> Iterator[None]:
    """Keep ``device`` within ``limit`` for the duration of a ``with`` block.

    On exit the settings from before come back: the budget and policy of an
    enclosing :func:`enable`, or off. Arguments and errors are those of
    :func:`enable`.
    """
    was_enabled = _C.is_enabled()
    limit_before, policy_before = _C.current_budget(), _C.current_policy()
    enable(limit, device=device, policy=policy)
    try:
        yield
    finally:
        if was_enabled:
            limit = float("inf") if limit_before is None else limit_before
            enable(limit, device=device, policy=policy_before)
        else:
            disable()


def set_budget(limit: Limit, *, device: Device = None) -> None:
    """Change the budget; evicts at once what a smaller one leaves no room for.

    Args:
        limit: as for :func:`enable`; ``None`` and ``float("inf")`` mean no limit.

    Raises:
        ValueError: if ``limit`` cannot be read, or while disabled.
    """
    _C.set_budget(budget_bytes(limit, _total_memory(managed_device(device))))


def pin(tensor: torch.Tensor) -> None:
    """Make ``tensor``'s storage resident and keep it so until :func:`unpin`.

    Pins count: each needs an ``unpin`` of its own. Views share their pin.
    """
    _C.pin(tensor.untyped_storage())


def unpin(tensor: torch.Tensor) -> None:
    """Undo one :func:`pin`.

    Raises:
        ValueError: if ``tensor`` is not pinned.
    """
    _C.unpin(tensor.untyped_storage())


def policies() -> Tuple[str, ...]:
    """Return the names of the policies."""
    return tuple(_C.policies())
