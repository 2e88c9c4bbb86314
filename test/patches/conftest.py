"""A ten-line upstream, and a project that patches it with the real commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from remat_build.project import sha256

ROOT = Path(__file__).resolve().parents[2]

UPSTREAM = {
    "version.txt": "2.6.0a0\n",
    ".gitignore": "*.log\n",
    "c10/alloc.cpp": "int one;\nint two;\nint three;\nint four;\nint five;\nint six;\n",
    "c10/CMakeLists.txt": "add_library(c10 alloc.cpp)\n",
    "torch/kept.log": "a tracked file that upstream's .gitignore hides\n",
}

PATCH = """\
From: Remat developers <remat@example.invalid>
Subject: [PATCH] c10: tell remat

Why: to have a patch.
Why-a-patch: to test patches.
Upstream: not-sent
Tested-by: test/patches/conftest.py

"""

SETTINGS = """\
version = "2.6.0"
fork = "remat1"
git_url = "{url}"
git_tag = "v2.6.0"

[debian]
package = "pytorch"
version = "2.6.0"
suite = "none"
archive = "toy.orig.tar.xz"
sha256 = "{sha256}"
"""


@dataclass(frozen=True)
class Toy:
    """The toy project, its upstream, and the commands run in it."""

    root: Path
    source: Path
    tree: Path

    def run(self, script: str, *words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, self.root / script, *words]
        return subprocess.run(
            [str(word) for word in command],
            text=True,
            capture_output=True,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.root),
                "TORCH_REMAT_CACHE": str(self.root / "cache"),
            },
        )

    def prepare(self, *words: object) -> subprocess.CompletedProcess[str]:
        if not words:
            words = ("--source", self.source)
        return self.run("build_scripts/prepare_tree.py", "--dest", self.tree, *words)

    def refresh(self) -> subprocess.CompletedProcess[str]:
        return self.run("build_scripts/refresh_patches.py", "--tree", self.tree)

    def check(self) -> subprocess.CompletedProcess[str]:
        return self.run("ci/check_patches.py")

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        return subprocess.run(
            ["git", *identity, *words],
            cwd=self.tree,
            text=True,
            capture_output=True,
            check=True,
        ).stdout

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text in a file of the prepared tree."""
        path = self.tree / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def commit(self, subject: str) -> None:
        """Commit the edits, with the header fields that a patch needs."""
        body = PATCH.partition("\n\n")[2]
        self.git("commit", "--quiet", "--all", "--message", f"{subject}\n\n{body}")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def patches(self) -> dict[str, str]:
        """Every file of the patch set, as text."""
        folder = self.root / "patches"
        return {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def says(self, done: subprocess.CompletedProcess[str]) -> str:
        """The one line that a command failed with."""
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    def leftovers(self) -> list[str]:
        """What lies beside the tree, lock files left out."""
        names = {path.name for path in self.tree.parent.iterdir()}
        return sorted(name for name in names if not name.endswith("-lock"))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A project whose one patch was made by the commands themselves."""
    folder = tmp_path_factory.mktemp("template")
    toy = Toy(folder / "project", folder / "source", folder / "out" / "tree")
    for name, text in UPSTREAM.items():
        (toy.source / name).parent.mkdir(parents=True, exist_ok=True)
        (toy.source / name).write_text(text)
    shutil.copytree(
        ROOT / "build_scripts",
        toy.root / "build_scripts",
        ignore=shutil.ignore_patterns("__pycache__", "demo*"),
    )
    (toy.root / "ci").mkdir()
    shutil.copy(ROOT / "ci/check_patches.py", toy.root / "ci")
    archive = toy.root / "cache/source/toy.orig.tar.xz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(toy.source, "toy-2.6.0")
    settings = SETTINGS.format(url="", sha256=sha256(archive))
    toy.write("build_scripts/upstream.toml", settings)
    toy.write("patches/overlay.toml", '[overlay]\n"ours" = "c10/remat"\n')
    toy.write("ours/Hook.h", "// a hook\n")
    toy.write("test/patches/conftest.py", "")
    toy.write("patches/series", "")
    toy.write("patches/touched.lock", "")
    assert toy.prepare().returncode == 0
    toy.edit("c10/alloc.cpp", "int two;\n", "int two;\nremat();\n")
    toy.commit("c10: tell remat")
    assert toy.refresh().returncode == 0
    shutil.rmtree(toy.tree)
    return toy


@pytest.fixture
def toy(template: Toy, tmp_path: Path) -> Toy:
    """A copy of the template, with nothing prepared yet."""
    shutil.copytree(template.root.parent, tmp_path, dirs_exist_ok=True)
    toy = Toy(tmp_path / "project", tmp_path / "source", tmp_path / "out" / "tree")
    settings = toy.read("build_scripts/upstream.toml")
    url = f'git_url = "{toy.source}"'
    toy.write("build_scripts/upstream.toml", settings.replace('git_url = ""', url))
    return toy
