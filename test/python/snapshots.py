"""Exact copies of results, outside torch's memory, and their comparison bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """One tensor (or plain value) as it was: properties and bytes.

    The bytes are numpy's, so that holding a snapshot costs nothing from the budget.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    data: Any


def snapshot(value: object) -> dict[str, Snapshot]:
    """Copy every tensor and number in a nest of dicts, lists and tuples, by path."""
    found: dict[str, Snapshot] = {}
    leaves, _ = pytree.tree_flatten_with_path(value)
    for path, leaf in leaves:
        name = pytree.keystr(path)
        for part, copy in _parts(leaf):
            found[name + part] = copy
    return found


def differences(
    expected: dict[str, Snapshot],
    found: dict[str, Snapshot],
    *,
    compare_data: bool = True,
) -> list[str]:
    """List what differs, one line per tensor; empty means equal bit for bit.

    A NaN equals any NaN: its payload depends on instruction selection.
    """
    lines = [f"{name}: missing" for name in expected.keys() - found.keys()]
    lines += [f"{name}: unexpected" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        a, b = expected[name], found[name]
        for field in ("kind", "dtype", "shape", "stride", "requires_grad"):
            if getattr(a, field) != getattr(b, field):
                lines.append(
                    f"{name}: {field} {getattr(b, field)}, expected {getattr(a, field)}"
                )
                break
        else:
            if compare_data and not _same_data(a.data, b.data):
                lines.append(f"{name}: {_describe(a.data, b.data)}")
    return sorted(lines)


def assert_equal(expected: object, found: object, what: str = "") -> None:
    """Assert that two nests of tensors are equal bit for bit."""
    lines = differences(snapshot(expected), snapshot(found))
    assert not lines, "\n".join([what or "the runs differ:", *lines])


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def _parts(leaf: object) -> list[tuple[str, Snapshot]]:
    if not isinstance(leaf, torch.Tensor):
        return [("", _value(leaf))]
    if leaf.device.type == "meta":
        return [("", _plain(leaf, None))]
    detached = leaf.detach()
    extra = [("(layout)", _value((str(leaf.layout), leaf.requires_grad)))]
    if leaf.is_nested:
        for i, part in enumerate(detached.unbind()):
            extra += [(f"(unbind {i}){name}", copy) for name, copy in _parts(part)]
        return extra
    if leaf.layout == torch.sparse_coo:
        return [
            ("(indices)", _plain(detached._indices())),
            ("(values)", _plain(detached._values())),
            ("(coalesced)", _value(leaf.is_coalesced())),
            *extra,
        ]
    if leaf.layout in _COMPRESSED:
        parts = [getattr(detached, name)() for name in _COMPRESSED[leaf.layout]]
        return [
            ("(outer)", _plain(parts[0])),
            ("(inner)", _plain(parts[1])),
            ("(values)", _plain(detached.values())),
            *extra,
        ]
    if leaf.is_quantized:
        return [
            ("(int_repr)", _plain(leaf.int_repr())),
            ("(scheme)", _value(str(leaf.qscheme()))),
        ]
    return [("", _plain(leaf))]


def _value(value: object) -> Snapshot:
    return Snapshot(type(value).__name__, "", (), (), False, value)


def _plain(leaf: torch.Tensor, data: object = ...) -> Snapshot:
    return Snapshot(
        kind="tensor",
        dtype=str(leaf.dtype),
        shape=tuple(leaf.shape),
        stride=tuple(leaf.stride()),
        requires_grad=leaf.requires_grad,
        data=_bytes(leaf) if data is ... else data,
    )


def _bytes(leaf: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        plain = leaf.detach().resolve_conj().resolve_neg()
        if plain._is_zerotensor():  # has no bytes, though numpy() would read some
            plain = torch.zeros_like(plain)
        if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            plain = plain.to(torch.float32)
        if plain.dtype == torch.complex32:
            plain = plain.to(torch.complex64)
        return np.array(plain.cpu().numpy(), copy=True)


def _same_data(a: object, b: object) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return bool(a == b)
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind not in "fc":
        return False
    parts = [(a, b)] if a.dtype.kind == "f" else [(a.real, b.real), (a.imag, b.imag)]
    for x, y in parts:
        both_nan = np.isnan(x) & np.isnan(y)
        same_bits = (x == y) & (np.signbit(x) == np.signbit(y))
        if not np.all(both_nan | same_bits):
            return False
    return True


def _describe(a: object, b: object) -> str:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return f"{b!r}, expected {a!r}"
    unequal = a != b
    with np.errstate(all="ignore"):
        gap = np.abs(
            np.subtract(a, b, dtype=None if a.dtype.kind != "b" else int)
        ).max()
    return f"{int(np.sum(unequal))} of {a.size} elements differ, by up to {gap}"
