"""Where things are: the checkout, the cache, and what upstream.toml says."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomllib

from .console import say


@dataclass(frozen=True)
class Project:
    """A checkout of this repository."""

    root: Path

    @classmethod
    def here(cls) -> Project:
        return cls(Path(__file__).resolve().parents[2])

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def default_tree(self) -> Path:
        return self.build / "upstream"

    @cached_property
    def upstream(self) -> dict[str, Any]:
        text = (self.root / "build_scripts" / "upstream.toml").read_text()
        return tomllib.loads(text)

    @property
    def version(self) -> str:
        return f"{self.upstream['version']}+{self.upstream['fork']}"


def cache_dir(*parts: str) -> Path:
    """A folder of the download cache, made if need be."""
    base = os.environ.get("TORCH_REMAT_CACHE")
    if not base:
        xdg = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = Path(xdg) / "torch-remat"
    folder = Path(base).joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(lock_file: Path) -> Iterator[None]:
    """Hold ``lock_file`` against other processes that do the same work."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"wait for another run, which holds {lock_file}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def complete_or_absent(destination: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``destination`` if nothing fails."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{destination.name}."
    for leftover in destination.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of an interrupted run
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=destination.parent))
    partial.chmod(0o755)
    try:
        yield partial
        if destination.exists():
            old = partial.with_name(partial.name + ".old")
            destination.rename(old)
            partial.rename(destination)
            shutil.rmtree(old)
        else:
            partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def files_under(folder: Path) -> list[Path]:
    """Source files below a folder, sorted; caches and editor files left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
        and path.suffix != ".pyc"
    )


def content_hash(root: Path, names: Iterable[str], *, salt: str = "") -> str:
    """One hash over the names and bytes of files and folders below ``root``.

    Folders that do not exist are empty.
    """
    digest = hashlib.sha256(salt.encode())
    for name in names:
        path = root / name
        for file in [path] if path.is_file() else files_under(path):
            digest.update(f"{file.relative_to(root)}\0{sha256(file)}\0".encode())
    return digest.hexdigest()
