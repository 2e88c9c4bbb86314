"""Where the upstream sources come from: three ways to the same files."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

from .console import BuildError, fail, run, say, step
from .project import Project, cache_dir, locked, sha256


def from_debian(project: Project, into: Path) -> None:
    """Unpack Debian's source package into the empty folder ``into``."""
    archive = debian_archive(project)
    with step("unpack upstream"), tarfile.open(archive) as tar:
        for member in tar:
            _, _, member.name = member.name.partition("/")
            if member.name:
                tar.extract(member, into, filter="tar")


def some_from_debian(project: Project, names: list[str], into: Path) -> set[str]:
    """Unpack some files only; return the names of all that are in the archive."""
    present = set()
    with tarfile.open(debian_archive(project)) as tar:
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


def from_tree(tree: Path, into: Path) -> None:
    """Copy the files of the user's tree, which is only read."""
    with step(f"copy {tree}"):
        for file in _files_of(tree):
            target = into / file.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)


def fingerprint(tree: Path) -> str:
    """Changes when a file of the user's tree does: by name, size and time."""
    digest = hashlib.sha256()
    for file in sorted(_files_of(tree)):
        stat = file.lstat()
        digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _files_of(tree: Path) -> list[Path]:
    """Of a git checkout the tracked files (submodules left out), of anything else
    all files."""
    if not tree.is_dir():
        fail(f"--source {tree}: no such folder")
    if (tree / ".git").exists():
        names = run(["git", "ls-files", "-z"], cwd=tree).split("\0")
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


def debian_archive(project: Project) -> Path:
    """Debian's ``orig`` archive in the cache, fetched if need be, verified."""
    debian = project.upstream["debian"]
    archive = cache_dir("source") / debian["archive"]
    with locked(archive.with_name(f".{archive.name}.lock")):
        if not archive.is_file():
            _fetch_debian(debian, archive)
    if (found := sha256(archive)) != debian["sha256"]:
        fail(
            f"{archive} has hash {found[:12]}..., expected {debian['sha256'][:12]}...; "
            "delete it and run again"
        )
    return archive


def _fetch_debian(debian: dict[str, Any], archive: Path) -> None:
    """Let apt download the source package, with a source list and state folders
    of our own. Not authenticated by apt: the archive's hash is pinned instead,
    as the suite's key may be newer than this machine."""
    state = cache_dir("source", "apt")
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    sources = state / "sources.list"
    sources.write_text(f"deb-src {_debian_mirror()} {debian['suite']} main\n")
    apt = ["apt-get", "-qq"]
    for option in (
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={state / 'lists'}",
        f"Dir::Cache={state / 'cache'}",
        "Acquire::AllowInsecureRepositories=true",
        "APT::Get::AllowUnauthenticated=true",
    ):
        apt += ["-o", option]
    say(f"download {archive.name} (27 MB) with apt")
    package = f"{debian['package']}={debian['version']}"
    try:
        run([*apt, "update"])
        run([*apt, "source", "--download-only", package], cwd=archive.parent)
    except BuildError as error:
        said = str(error).partition(" failed: ")[2] or str(error)
        fail(
            f"cannot download {archive.name} from Debian's suite {debian['suite']} "
            f"({said}); put it into {archive.parent}, or use --source or --git-tag"
        )


def _debian_mirror() -> str:
    """The package mirror that this machine is set up to use."""
    etc = Path("/etc/apt")
    for file in sorted(etc.glob("sources.list.d/*.sources")):
        if match := re.search(r"^URIs:\s*(\S+)", file.read_text(), re.M):
            return match[1]
    for file in [etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))]:
        if file.is_file() and (
            match := re.search(r"^deb (?:\[[^]]*\] )?(\S+)", file.read_text(), re.M)
        ):
            return match[1]
    raise BuildError(
        "apt has no package source on this machine; use --source or --git-tag"
    )
