"""What follows for a build from what a series of patches touches."""

from __future__ import annotations

import hashlib
import re

from .console import fail
from .patchset import PatchSet
from .project import Project, content_hash

# A patched upstream file -> the library it is compiled into, most special first.
_LIBRARY_OF = (
    (re.compile(r"c10/cuda/.*\.(cpp|h)"), "c10_cuda"),
    (re.compile(r"c10/(?!cuda/|xpu/|hip/).*\.(cpp|h)"), "c10"),
)
# Patched files that are shipped as they are, or belong to the full build only.
PYTHON_FILE = re.compile(r"(torch|functorch|torchgen)/.*\.pyi?")
_BUILD_FILE = re.compile(r".*(CMakeLists\.txt|\.cmake)|setup\.py")


def libraries_of(touched: list[str]) -> tuple[str, ...]:
    """The libraries that a series makes it necessary to rebuild."""
    libraries = set()
    for file in touched:
        if PYTHON_FILE.fullmatch(file) or _BUILD_FILE.fullmatch(file):
            continue
        name = next((lib for rule, lib in _LIBRARY_OF if rule.fullmatch(file)), None)
        if name is None:
            fail(
                f"a patch edits {file}, which the splice build does not compile; "
                "it needs the full source build"
            )
        libraries.add(name)
    return tuple(sorted(libraries))


def series_hash(patch_set: PatchSet) -> str:
    """Names the patches that a wheel was built with."""
    texts = (patch.format() for patch in patch_set.patches)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def build_info(project: Project) -> str:
    """The text of ``torch/cuda/remat/_build_info.py``."""
    patch_set = PatchSet(project.patches)
    sources = content_hash(project.root, ["patches", *sorted(patch_set.overlay)])
    return (
        '"""Written by the build: what this wheel was made from."""\n\n'
        f'version = "{project.upstream["fork"].removeprefix("remat")}"\n'
        f'torch_version = "{project.version}"\n'
        f'series_hash = "{series_hash(patch_set)}"\n'
        f'source_hash = "{sources[:16]}"\n'
    )
