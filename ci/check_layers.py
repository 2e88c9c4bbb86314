#!/usr/bin/env python3
"""Check that each file includes only its own layer and those below.

One direction of flow is what keeps a policy testable without torch and libtorch_cpu
free of libc10_cuda. The table is the rule; needs no build.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_INCLUDE = re.compile(r'^\s*#\s*include\s+(?P<open>[<"])(?P<path>[^>"]+)[>"]', re.M)
_SUFFIXES = {".h", ".cpp"}
# C++'s own headers, and the few of the C library that have no C++ form.
_SYSTEM = re.compile(r"[a-z0-9_]+|(malloc|unistd|pthread|dlfcn|sys/\w+)\.h")

# How an overlay's headers are spelled in an include -> the folder they are in.
_SPELLINGS = {
    "c10/remat/": "c10_cuda_allocator/remat/",
    "c10/cuda/remat/": "c10_cuda_allocator/cuda/",
    "ATen/remat/": "aten_hooks/",
    "torch/csrc/cuda/remat/": "python/csrc/",
}


@dataclass(frozen=True)
class Layer:
    """Files below a folder (or one file group), and what they may include."""

    folder: str
    ours: tuple[str, ...]  # prefixes of our own files
    others: tuple[str, ...] = ()  # prefixes of foreign headers, besides C++'s own


# Files directly in remat/ that every layer may use: plain types and ports.
_BASE = tuple(
    f"c10_cuda_allocator/remat/{name}"
    for name in ("Ids.h", "Export.h", "Errors.h", "Config.h", "Stats.h", "TraceEvent.h")
)
_CORE = "c10_cuda_allocator/remat/"
# What evicting and replaying, which do not know each other, both work on.
_SHARED = (
    *_BASE,
    f"{_CORE}Ports.h",
    f"{_CORE}EngineState.h",
    f"{_CORE}graph/",
    f"{_CORE}policy/",
)

# First match wins: the most special folder first.
LAYERS = (
    Layer(f"{_CORE}graph/", (*_BASE, f"{_CORE}graph/")),
    Layer(f"{_CORE}policy/", (*_BASE, f"{_CORE}graph/", f"{_CORE}policy/")),
    Layer(
        f"{_CORE}evict/",
        (*_SHARED, f"{_CORE}evict/"),
    ),
    Layer(
        f"{_CORE}replay/",
        (*_SHARED, f"{_CORE}replay/"),
    ),
    Layer(_CORE, (_CORE,)),
    Layer(
        "c10_cuda_allocator/cuda/",
        (_CORE, "c10_cuda_allocator/cuda/"),
        ("c10/", "cuda"),
    ),
    Layer("aten_hooks/", (_CORE, "aten_hooks/"), ("ATen/", "c10/", "torch/")),
    Layer(
        "python/csrc/",
        (_CORE, "aten_hooks/", "python/csrc/"),
        ("ATen/", "c10/", "torch/", "pybind11/", "Python.h"),
    ),
)
# Foreign headers that a layer must not see although its prefixes allow them.
_NEVER = {"aten_hooks/": ("ATen/cuda/", "c10/cuda/", "ATen/native/cuda/")}


def included(file: Path, spelled: str, quoted: bool, root: Path) -> str | None:
    """The path of our own header that an include names; None if it is foreign."""
    for prefix, folder in _SPELLINGS.items():
        if spelled.startswith(prefix):
            return folder + spelled.removeprefix(prefix)
    if quoted:
        target = (file.parent / spelled).resolve()
        if target.is_relative_to(root):
            return target.relative_to(root).as_posix()
    return None


def check_file(file: Path, layer: Layer, root: Path) -> Iterator[str]:
    name = file.relative_to(root).as_posix()
    text = file.read_text()
    for match in _INCLUDE.finditer(text):
        spelled, quoted = match["path"], match["open"] == '"'
        line = text.count("\n", 0, match.start("path")) + 1
        ours = included(file, spelled, quoted, root)
        if ours is not None:
            allowed = ours.startswith(layer.ours)
        elif any(spelled.startswith(never) for never in _NEVER.get(layer.folder, ())):
            allowed = False
        else:
            allowed = bool(_SYSTEM.fullmatch(spelled)) or spelled.startswith(
                layer.others
            )
        if not allowed:
            yield f"{name}:{line}: {layer.folder} must not include {spelled}"


def check_patched_files(root: Path) -> Iterator[str]:
    """An upstream file includes at most one header of ours."""
    for patch in sorted((root / "patches").rglob("*.patch")):
        for section in re.split(r"^diff --git ", patch.read_text(), flags=re.M)[1:]:
            added = re.findall(r"^\+\s*#\s*include\s+(\S+)", section, re.M)
            if len(added) > 1:
                file = section.split()[0].removeprefix("a/")
                yield f"patches: {file} includes {len(added)} of our headers, not one"


def check(root: Path) -> list[str]:
    problems = list(check_patched_files(root))
    for folder in ("c10_cuda_allocator", "aten_hooks", "python/csrc"):
        for file in sorted((root / folder).rglob("*")):
            name = file.relative_to(root).as_posix()
            layer = next((x for x in LAYERS if name.startswith(x.folder)), None)
            if layer and file.suffix in _SUFFIXES:
                problems += check_file(file, layer, root)
    return problems


if __name__ == "__main__":
    found = check(ROOT)
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        raise SystemExit(1)
    print("includes follow the layers")
