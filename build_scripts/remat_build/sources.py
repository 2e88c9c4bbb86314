"""Where the upstream sources come from: three ways to the same files."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
from pathlib import Path

from .console import fail, run, step
from .debian import source_archive, unpack
from .project import Project


def from_debian(project: Project, into: Path) -> None:
    """Unpack Debian's source package into the empty folder ``into``."""
    archive = source_archive(project.upstream["debian"])
    with step("unpack upstream"):
        unpack(archive, into)


def some_from_debian(project: Project, names: list[str], into: Path) -> set[str]:
    """Unpack some files only; return the names of all that are in the archive."""
    present = set()
    with tarfile.open(source_archive(project.upstream["debian"])) as tar:
        for member in tar:
            _, _, member.name = member.name.partition("/")
            present.add(member.name)
            if member.name in names:
                tar.extract(member, into, filter="tar")
    return present


def from_git_tag(project: Project, into: Path) -> None:
    """Clone upstream's tag, history and submodules left out."""
    url, tag = project.upstream["git_url"], project.upstream["git_tag"]
    with step(f"clone upstream {tag}"):
        run(["git", "clone", "--quiet", "--depth=1", f"--branch={tag}", url, into])
    shutil.rmtree(into / ".git")


def from_tree(tree: Path, into: Path, *, submodules: bool = False) -> None:
    """Copy the files of the user's tree, which is only read."""
    with step(f"copy {tree}"):
        for file in _files_of(tree, submodules):
            target = into / file.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)


def fingerprint(tree: Path, *, submodules: bool = False) -> str:
    """Changes when a file of the user's tree does: by name, size and time."""
    digest = hashlib.sha256()
    for file in sorted(_files_of(tree, submodules)):
        stat = file.lstat()
        digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _files_of(tree: Path, submodules: bool) -> list[Path]:
    """Of a git checkout the tracked files, of anything else all files."""
    if not tree.is_dir():
        fail(f"--source {tree}: no such folder")
    if (tree / ".git").exists():
        command = ["git", "ls-files", "-z"]
        if submodules:
            command.append("--recurse-submodules")
        names = run(command, cwd=tree).split("\0")
        files = [tree / name for name in names if name]
    else:
        files = list(tree.rglob("*"))
    return [file for file in files if file.is_symlink() or file.is_file()]


def check_version(project: Project, tree: Path) -> None:
    """Fail unless ``tree`` is of the upstream version that we patch."""
    wanted = project.upstream["version"]
    try:
        found = (tree / "version.txt").read_text().strip()
    except FileNotFoundError:
        fail(f"not a PyTorch source tree (no version.txt); need PyTorch {wanted}")
    if not re.match(rf"{re.escape(wanted)}(?!\d)", found):
        fail(f"this is PyTorch {found}; the patches are for {wanted}")
