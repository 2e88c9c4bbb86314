"""Turning rematerialization on and off, and what the program asks of it."""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional, Tuple

import torch

from . import _access, _C
from ._config import budget_bytes, Environment, Limit
from ._devices import (
    Device,
    initialize,
    meant_device,
    meant_devices,
    slot,
    total_memory,
)


def enable(
    budget: Limit = None, *, device: Device = None, policy: Optional[str] = None
) -> None:
    """Keep ``device`` within ``budget`` from now on.

    Covers all threads. Enabling again changes the budget and, where one is
    given, the policy. Several devices can be enabled, each with its own budget.

    Args:
        budget: the most bytes in use on the device, as :func:`parse_bytes`
            reads them; default: the environment variable
            ``PYTORCH_REMAT_BUDGET``, and without it no limit.
        device: default, and for ``"cuda"``: every visible GPU, each with that
            budget; without a GPU the CPU.
        policy: a name from :func:`policies`; default: the best one there is.

    Raises:
        ValueError: if the budget cannot be read or the policy is unknown.
        NotImplementedError: if the device cannot be managed.

    A budget below what is in use is not an error: nothing is lost, and the
    first allocation that does not fit raises ``torch.OutOfMemoryError``.
    """
    environment = Environment.read()
    targets = meant_devices(device)
    initialize(targets)
    limit = environment.budget if budget is None else budget
    limits = [budget_bytes(limit, total_memory(target)) for target in targets]
    _access.install()
    for target, limit_bytes in zip(targets, limits):
        _C.enable(
            slot(target),
            limit_bytes,
            _C.current_policy(slot(target)) if policy is None else policy,
            environment.chaos,
            environment.windows,
            environment.smallest_managed,
            environment.planner_share,
        )


def disable(device: Device = None) -> None:
    """Bring everything evicted back, whatever the budget, and stop.

    Args:
        device: default: every device that is enabled.

    No effect while disabled.
    """
    if device is None:
        for index in _C.enabled_devices():
            _C.disable(index)
        return
    for target in meant_devices(device):
        _C.disable(slot(target))


def is_enabled(device: Device = None) -> bool:
    """Return whether ``device`` is kept within a budget; default: whether any is."""
    if device is None:
        return bool(_C.enabled_devices())
    return _C.is_enabled(slot(meant_device(device)))


@contextlib.contextmanager
def budget(
    limit: Limit = None, *, device: Device = None, policy: Optional[str] = None
) -> Iterator[None]:
    """Keep ``device`` within ``limit`` for the duration of a ``with`` block.

    On exit the settings from before come back: the budget and policy of an
    enclosing :func:`enable`, or off. Arguments and errors are those of
    :func:`enable`.
    """
    targets = meant_devices(device)
    before = {
        target: (_C.current_budget(slot(target)), _C.current_policy(slot(target)))
        for target in targets
        if _C.is_enabled(slot(target))
    }
    enable(limit, device=device, policy=policy)
    try:
        yield
    finally:
        for target in targets:
            if target in before:
                limit_before, policy_before = before[target]
                enable(
                    float("inf") if limit_before is None else limit_before,
                    device=target,
                    policy=policy_before,
                )
            else:
                # What is known of iterations holds for the next such block.
                _C.disable(slot(target), for_now=True)


def set_budget(limit: Limit, *, device: Device = None) -> None:
    """Change the budget; evicts at once what a smaller one leaves no room for.

    Args:
        limit: as for :func:`enable`; ``None`` and ``float("inf")`` mean no limit.
        device: as for :func:`enable`.

    Raises:
        ValueError: if ``limit`` cannot be read, or if a device is disabled.
    """
    targets = meant_devices(device)
    limits = [budget_bytes(limit, total_memory(target)) for target in targets]
    for target, limit_bytes in zip(targets, limits):
        _C.set_budget(slot(target), limit_bytes)


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
