"""Recording what the engine saw, for the simulator."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Union

from . import _C
from ._devices import Device, meant_device, slot


@contextlib.contextmanager
def record_trace(
    path: Union[str, "os.PathLike[str]"], *, device: Device = None
) -> Iterator[None]:
    """Write every event of the ``with`` block to ``path``, a line of JSON each.

    Of one device; default: the current GPU where there is one, else the CPU.

    What is in the graph already is written first, as leaves and ops. The format
    is described in ``docs/design/trace.md``.

    Raises:
        ValueError: if the file cannot be written, or while remat is off.
    """
    index = slot(meant_device(device))
    _C.start_trace(index, os.fspath(path))
    try:
        yield
    finally:
        _C.stop_trace(index)
