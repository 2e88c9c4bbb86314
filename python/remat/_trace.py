"""Recording what the engine saw, for the simulator."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Union

from . import _C


@contextlib.contextmanager
def record_trace(path: Union[str, "os.PathLike[str]"]) -> Iterator[None]:
    """Write every event of the ``with`` block to ``path``, a line of JSON each.

    What is in the graph already is written first, as leaves and ops. The format
    is described in ``docs/design/trace.md``.

    Raises:
        ValueError: if the file cannot be written, or while remat is off.
    """
    _C.start_trace(os.fspath(path))
    try:
        yield
    finally:
        _C.stop_trace()
