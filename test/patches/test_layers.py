"""check_layers.py: includes go one way."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "ci/check_layers.py"


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("c10_cuda_allocator/remat/graph/A.h", "<vector>"),
        ("c10_cuda_allocator/remat/graph/A.h", '"../Ids.h"'),
        ("c10_cuda_allocator/remat/policy/A.h", '"../graph/B.h"'),
        ("c10_cuda_allocator/remat/Engine.h", '"policy/B.h"'),
        ("aten_hooks/capture/A.h", "<c10/remat/Engine.h>"),
        ("aten_hooks/capture/A.h", "<ATen/core/dispatch/Dispatcher.h>"),
        ("python/csrc/A.cpp", "<ATen/remat/RematMode.h>"),
    ],
)
def test_allowed(layers: ModuleType, tmp_path: Path, file: str, include: str) -> None:
    _write(tmp_path / file, f"#include {include}\n")
    assert layers.check(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("c10_cuda_allocator/remat/graph/A.h", '"../policy/B.h"'),
        ("c10_cuda_allocator/remat/graph/A.h", "<c10/core/StorageImpl.h>"),
        ("c10_cuda_allocator/remat/evict/A.h", '"../replay/B.h"'),
        ("c10_cuda_allocator/remat/replay/A.h", '"../evict/B.h"'),
        ("c10_cuda_allocator/remat/Engine.h", "<ATen/ATen.h>"),
        ("c10_cuda_allocator/remat/Engine.h", "<cuda.h>"),
        ("c10_cuda_allocator/cuda/A.h", "<ATen/remat/RematMode.h>"),
        ("aten_hooks/capture/A.h", "<c10/cuda/remat/Placement.h>"),
        ("aten_hooks/capture/A.h", "<c10/cuda/CUDAStream.h>"),
    ],
)
def test_forbidden(layers: ModuleType, tmp_path: Path, file: str, include: str) -> None:
    _write(tmp_path / file, f"\n#include {include}\n")
    (problem,) = layers.check(tmp_path)
    assert problem.startswith(f"{file}:2: ")


def test_patched_file_includes_one_header_of_ours(
    layers: ModuleType, tmp_path: Path
) -> None:
    added = "+#include <c10/remat/A.h>\n+#include <c10/remat/B.h>\n"
    _write(tmp_path / "patches/c10/x.patch", f"\ndiff --git a/x.cpp b/x.cpp\n{added}")
    (problem,) = layers.check(tmp_path)
    assert "x.cpp includes 2 of our headers" in problem


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
