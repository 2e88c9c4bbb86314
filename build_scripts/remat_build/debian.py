"""Packages of Debian, fetched with apt into the cache and verified."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

from .console import BuildError, fail, run, say
from .project import cache_dir, locked, sha256


def source_archive(source: dict[str, Any]) -> Path:
    """An archive of a source package, or a binary package, fetched if need be.

    Args:
        source: ``package``, ``version`` and ``suite`` as apt knows them, and
            ``archive`` and ``sha256`` of the file that is wanted of it.
    """
    archive = cache_dir("source") / source["archive"]
    with locked(archive.with_name(f".{archive.name}.lock")):
        if not archive.is_file():
            _fetch(source, archive)
    if (found := sha256(archive)) != source["sha256"]:
        fail(
            f"{archive} has hash {found[:12]}..., expected {source['sha256'][:12]}...; "
            "delete it and run again"
        )
    return archive


def unpack(archive: Path, into: Path) -> None:
    """Unpack into ``into``; a source package without its own top folder."""
    if archive.suffix == ".deb":
        run(["dpkg-deb", "--extract", archive, into])
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, member.name = member.name.partition("/")
            if member.name:
                tar.extract(member, into, filter="tar")


def _fetch(source: dict[str, Any], archive: Path) -> None:
    """Let apt download the package, with a source list and state folders
    of our own. Not authenticated by apt: the archive's hash is pinned instead,
    as the suite's key may be newer than this machine."""
    suite = source["suite"]
    if archive.suffix == ".deb":
        kind, download = "deb", ["download"]
        state = cache_dir("source", "apt", f"{suite}-packages")
    else:
        kind, download = "deb-src", ["source", "--download-only"]
        state = cache_dir("source", "apt", suite)
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    sources = state / "sources.list"
    sources.write_text(f"{kind} {_mirror()} {suite} main\n")
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
    say(f"download {archive.name} with apt")
    package = f"{source['package']}={source['version']}"
    try:
        run([*apt, "update"])
        run([*apt, *download, package], cwd=archive.parent)
    except BuildError as error:
        if archive.is_file():
            return  # a mirror without the package's other files will do
        said = str(error).partition(" failed: ")[2] or str(error)
        fail(
            f"cannot download {archive.name} from Debian's suite {suite} "
            f"({said}); put it into {archive.parent}, or use --source"
        )


def _mirror() -> str:
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
    raise BuildError("apt has no package source on this machine; use --source")
