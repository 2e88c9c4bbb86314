"""The full build against the distribution's libraries.

Debian's source package has no third-party folders. Debian's own packaging patches
make upstream's build find the distribution's libraries instead; they are taken from
that package, so that this project carries no copy.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from .console import BuildError, fail, run
from .debian import source_archive, unpack
from .project import Project
from .tree import Tree


def is_stripped(tree: Path) -> bool:
    """Whether the submodules that upstream's build needs are missing."""
    return not (tree / "third_party/pybind11/CMakeLists.txt").is_file()


def settings_text(project: Project) -> str:
    """Changes when what :func:`add_packaging` does changes."""
    libraries = project.upstream["full"]["libraries"]
    return json.dumps([project.upstream["debian"]["packaging"], libraries])


def add_packaging(project: Project, tree: Tree, flatc: Path) -> None:
    """Add a commit with what Debian's package of this version adds and changes."""
    debian = project.upstream["debian"]
    packaging = debian["packaging"]
    unpack(source_archive({**debian, **packaging}), tree.path / "debian")
    for name in packaging["patches"]:
        try:
            tree.git("apply", "--recount", f"debian/patches/{name}")
        except BuildError as error:
            fail(f"Debian's {name} does not apply to the patched tree: {error}")
    for edit in packaging["edits"]:
        file = tree.path / edit["file"]
        text = file.read_text()
        if text.count(edit["old"]) != 1:
            fail(f"{edit['file']} has no single {edit['old']!r} (upstream.toml, edits)")
        file.write_text(text.replace(edit["old"], edit["new"]))
    # The generated header is for the one version of flatbuffers that made it.
    serialization = tree.path / "torch/csrc/jit/serialization"
    options = ["--cpp", "--gen-mutable", "--scoped-enums", "mobile_bytecode.fbs"]
    run([flatc, *options], cwd=serialization)
    tree.git("add", "--all", "--force", "debian", "torch/csrc/jit/serialization")
    tree.git("commit", "--quiet", "--no-verify", "--all", "--message=debian: packaging")


def add_headers(
    project: Project, prefixes: list[Path], pybind11: Path, include: Path
) -> None:
    """Put into the wheel's include folder the distribution's headers that PyTorch's
    own include, for extensions and torch.compile. Upstream's build takes them from
    its submodules, and its setup.py expects them there."""
    include.mkdir(parents=True, exist_ok=True)
    ours = [f"-I{prefix}/include" for prefix in prefixes]
    for name in project.upstream["full"]["headers"]:
        said = run(["c++", *ours, "-E", "-x", "c++", "-"], stdin=f"#include <{name}>\n")
        found = re.search(rf'^# 1 "(.*/{re.escape(name)})"', said, re.MULTILINE)
        assert found is not None
        shutil.copyfile(found[1], include / name)
    shutil.copytree(pybind11 / "pybind11", include / "pybind11", dirs_exist_ok=True)
