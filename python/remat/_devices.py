"""Which devices a program means, and what there is to know of them."""

from __future__ import annotations

import os
from typing import List, Union

import torch

from . import _C


Device = Union[str, int, "torch.device", None]

_CPU = torch.device("cpu")


def _parse(device: Device) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = (
        torch.device("cuda", device)
        if isinstance(device, int)
        else torch.device(device)
    )
    if result.type not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"remat manages CUDA devices and the CPU, got {result}"
        )
    return _CPU if result.type == "cpu" else result


def meant_devices(device: Device) -> List[torch.device]:
    """Return the devices to change: every GPU where no one of them is named."""
    parsed = _parse(device)
    if parsed.type == "cpu" or parsed.index is not None:
        return [parsed]
    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]


def meant_device(device: Device) -> torch.device:
    """Return the device to look at: the current GPU where no one is named."""
    parsed = _parse(device)
    if parsed.type == "cpu" or parsed.index is not None:
        return parsed
    return torch.device("cuda", torch.cuda.current_device())


def slot(device: torch.device) -> int:
    """Return what ``_C`` calls a device: -1 is the CPU."""
    return -1 if device.type == "cpu" else device.index


def initialize(devices: List[torch.device]) -> None:
    """Make sure that the devices are there and that remat can limit them."""
    for device in devices:
        if device.type == "cpu":
            continue
        torch.cuda.init()
        if device.index >= torch.cuda.device_count():
            raise ValueError(
                f"there is no {device}; {torch.cuda.device_count()} CUDA devices are "
                "visible"
            )
        if not _C.can_limit(device.index):
            raise NotImplementedError(
                f"remat cannot manage {device}: its memory is not that of PyTorch's "
                "own caching allocator. Do not set backend:cudaMallocAsync in "
                "PYTORCH_CUDA_ALLOC_CONF, nor another allocator with "
                "torch.cuda.memory.change_current_allocator()"
            )


def total_memory(device: torch.device) -> int:
    """Return the device's memory in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    # The machine's memory, or the container's share of it.
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
