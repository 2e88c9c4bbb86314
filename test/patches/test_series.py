"""The real patch set, as far as that can be said without building."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from remat_build.console import BuildError
from remat_build.patchset import PatchSet
from remat_build.project import Project, cache_dir
from remat_build.series import libraries_of

PROJECT = Project.here()
PATCHES = PatchSet(PROJECT.patches)


def test_follows_the_conventions() -> None:
    archive = cache_dir("source") / PROJECT.upstream["debian"]["archive"]
    if not archive.is_file():
        pytest.skip("the upstream archive is not in the cache")
    check = [sys.executable, PROJECT.root / "ci/check_patches.py"]
    done = subprocess.run(check, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_what_upstream_includes_is_in_an_overlay() -> None:
    added = "\n".join(line for patch in PATCHES.patches for line in patch.added)
    for header in re.findall(r"#include <c10/remat/(\S+)>", added):
        assert (PROJECT.root / "c10_cuda_allocator/remat" / header).is_file()
    for name in re.findall(r"include\(.*/cmake/remat/(\S+)\)", added):
        assert (PROJECT.root / "build_scripts/cmake" / name).is_file()


def test_every_patch_is_described() -> None:
    readme = (PROJECT.patches / "README.md").read_text()
    for name in PATCHES.series:
        assert f"`{name.removesuffix('.patch')}`" in readme


@pytest.mark.parametrize(
    ("touched", "libraries"),
    [
        (["c10/core/impl/COW.cpp"], ("c10",)),
        (["c10/cuda/CUDACachingAllocator.cpp"], ("c10_cuda",)),
        (["c10/cuda/CUDAStream.h", "c10/util/env.cpp"], ("c10", "c10_cuda")),
        (["torch/cuda/__init__.py", "c10/CMakeLists.txt"], ()),
    ],
)
def test_libraries_to_rebuild(touched: list[str], libraries: tuple[str, ...]) -> None:
    assert libraries_of(touched) == libraries


def test_file_of_a_library_that_the_splice_build_cannot_make() -> None:
    with pytest.raises(BuildError, match="full source build"):
        libraries_of(["aten/src/ATen/Context.cpp"])
