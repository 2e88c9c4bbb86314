"""Accesses to a storage's bytes that no op makes and C++ cannot see.

C++ is told of mutable accesses (``data_ptr()``, DLPack, extensions) by the
page fault in c10. What reads through an immutable pointer, or hands out an alias
that may be written at any time, is covered here: each entry point is wrapped
once, when remat is first enabled, and is upstream's plus one check after that.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Iterable

import torch

from . import _C


# Read the bytes while they run.
_STORAGE_READERS = (
    "__getitem__",
    "__setitem__",
    "_byteswap",
    "_set_from_file",
    "_share_fd_cpu_",
    "_share_filename_cpu_",
    "_write_file",
    "copy_",
    "fill_",
    "resize_",
)
# Hand the memory to someone else for good.
_STORAGE_ESCAPES = ("_share_fd_cpu_", "_share_filename_cpu_", "data_ptr")
# Put another DataPtr in the storage's place.
_STORAGE_TAKES = ("_share_cuda_",)
_TENSOR_READERS = ("tolist", "__reduce_ex__")
_SCRIPT_WRITERS = {
    "ScriptModule": (
        "save",
        "save_to_buffer",
        "_save_for_mobile",
        "_save_to_buffer_for_mobile",
    ),
    "ScriptFunction": ("save", "save_to_buffer"),
}

_installed = False


def install() -> None:
    """Wrap the entry points; no effect the second time."""
    global _installed
    if _installed:
        return
    _installed = True
    for name in _STORAGE_READERS:
        _wrap(torch.UntypedStorage, name, _reading)
    for name in _STORAGE_ESCAPES:
        _wrap(torch.UntypedStorage, name, _escaping)
    for name in _STORAGE_TAKES:
        _wrap(torch.UntypedStorage, name, _taking)
    for name in _TENSOR_READERS:
        _wrap(torch.Tensor, name, _reading)
    for name in ("numpy", "__array__"):
        _wrap(torch.Tensor, name, _aliasing)
    _wrap(torch._C.PyTorchFileWriter, "write_record", _writing_record)
    for script, names in _SCRIPT_WRITERS.items():
        for name in names:
            _wrap(getattr(torch._C, script), name, _saving_script)
    _C.watch_c_functions()
    _skip_higher_order_operators()


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    setattr(owner, name, wrapped)


def _storages_of(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.UntypedStorage):
        return (value,)
    if isinstance(value, torch.storage.TypedStorage):
        return (value._untyped_storage,)
    if isinstance(value, torch.Tensor) and not _has_python_key(value):
        # Not the program's look: its modes and subclasses are not told.
        with torch._C.DisableTorchFunction():
            if (
                value.layout == torch.strided
                and value.device.type in ("cpu", "cuda")
                and torch._C._has_storage(value)
            ):
                return (torch._C.TensorBase.untyped_storage(value),)
    return ()


def _has_python_key(tensor: torch.Tensor) -> bool:
    # The bytes of such a subclass are those of tensors inside it, if any.
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    keys = torch._C._dispatch_keys(tensor)
    return bool(keys.has(torch._C.DispatchKey.Python))


class _Resident:
    """Keeps the storages behind ``values`` resident for a ``with`` block."""

    def __init__(self, *values: Any) -> None:
        self._storages = [s for v in values for s in _storages_of(v)]
        self._pins: list[Any] = []

    def __enter__(self) -> None:
        try:
            for storage in self._storages:
                self._pins.append(_C.begin_access(storage))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: Any) -> None:
        self._pins.clear()


def _reading(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    with _Resident(self, *args):
        return original(self, *args, **kwargs)


def _escaping(
    original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    if _C.is_any_enabled():
        for storage in _storages_of(self):
            _C.escape(storage)
    return original(self, *args, **kwargs)


def _taking(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    for storage in _storages_of(self):
        _C.unmanage(storage)
    return original(self, *args, **kwargs)


def _aliasing(
    original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    array = original(self, *args, **kwargs)
    if _C.is_any_enabled():
        _watch_alias(self, array)
    return array


def _watch_alias(tensor: torch.Tensor, array: Any) -> None:
    for storage in _storages_of(tensor):
        if array.size == 0 or not _shares(storage, array):
            continue
        _C.add_alias(storage)
        # Views of the array keep it alive, so its end is the last alias's.
        weakref.finalize(array, _C.drop_alias, storage).atexit = False


def _shares(storage: torch.UntypedStorage, array: Any) -> bool:
    # Not UntypedStorage's, which is wrapped here.
    start = torch._C.StorageBase.data_ptr(storage)  # type: ignore[attr-defined]
    address = array.__array_interface__["data"][0]
    return start <= address < start + storage.nbytes()


def _writing_record(
    original: Callable[..., Any], self: Any, name: str, data: Any, *args: Any
) -> Any:
    with _Resident(data):
        return original(self, name, data, *args)


def _saving_script(
    original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    pin = _C.ScriptPin(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        del pin


def _skip_higher_order_operators() -> None:
    # Operators that exist in Python only have no kernel for our dispatch key and
    # look for one where the key is in the thread's set.
    import torch._ops as ops

    key = torch._C._dispatch_key_parse("Fake")
    ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operator in ops._higher_order_ops.values():
        operator.fallthrough(key)
