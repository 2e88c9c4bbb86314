"""Libraries that the distribution has only too old, built from newer packages of it.

Each has a folder of its own in the cache, for all checkouts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .console import BuildError, run, say, step
from .debian import source_archive, unpack
from .ninja import Ninja
from .project import Project, cache_dir, complete_or_absent, locked


@dataclass(frozen=True)
class Libraries:
    """Those that upstream.toml lists; what is missing is built when asked for."""

    project: Project
    jobs: int

    def prefixes(self, settings: dict[str, str]) -> list[Path]:
        """Where those are that a build with these settings uses."""
        return [
            self._prefix(recipe)
            for recipe in self._recipes
            if is_on(settings.get(recipe.get("only_with", ""), "ON"))
        ]

    def prefix(self, name: str) -> Path:
        return next(self._prefix(r) for r in self._recipes if r["name"] == name)

    @property
    def _recipes(self) -> list[dict[str, Any]]:
        return self.project.upstream["full"]["libraries"]

    def _prefix(self, recipe: dict[str, Any]) -> Path:
        prefix = cache_dir("full", "libraries") / recipe["name"]
        note = prefix / "remat.json"
        key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
        with locked(prefix.with_name(f".{prefix.name}.lock")):
            if not note.is_file() or note.read_text() != key:
                with complete_or_absent(prefix) as partial:
                    self._build(recipe, key, partial)
                    (partial / note.name).write_text(key)
        return prefix

    def _build(self, recipe: dict[str, Any], key: str, prefix: Path) -> None:
        """Build and install. An interrupted build is gone on with."""
        scratch = prefix.parent / f".build-{recipe['name']}"
        source, build = scratch / key / "source", scratch / key / "build"
        if not source.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)  # of another version
            with complete_or_absent(source) as partial:
                _unpack_first_available(recipe, partial)
        if "cmake" not in recipe:  # a package of headers
            shutil.copytree(source / "usr/include", prefix / "include")
        else:
            settings = [f"-DCMAKE_INSTALL_PREFIX={prefix}"]
            settings += ["-DCMAKE_BUILD_TYPE=Release"]
            settings += ["-DCMAKE_POSITION_INDEPENDENT_CODE=ON", *recipe["cmake"]]
            with step(f"build {recipe['name']}"):
                run(["cmake", "-G", "Ninja", "-S", source, "-B", build, *settings])
                Ninja(build, self.jobs, dict(os.environ)).run(["install"])
        shutil.rmtree(scratch)


def is_on(setting: str) -> bool:
    """Whether upstream's setup.py and CMake take a setting for true."""
    return setting.upper() not in ("", "0", "OFF", "NO", "FALSE", "N")


def _unpack_first_available(recipe: dict[str, Any], into: Path) -> None:
    """A mirror need not have all suites, and a suite drops what it replaces."""
    *others, last = recipe["sources"]
    for source in others:
        try:
            _unpack(source, into)
        except BuildError as error:
            say(f"{error}; another suite is tried")
        else:
            return
    _unpack(last, into)


def _unpack(source: dict[str, Any], into: Path) -> None:
    """A source with the patches that are wanted of its packaging."""
    archive = source_archive(source)
    packaging = source.get("packaging", {"patches": []})
    if packaging["patches"]:
        unpack(source_archive({**source, **packaging}), into / "debian")
    unpack(archive, into)
    # In a repository, Git would apply nothing, as the files are not of it.
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(into.parent)}
    for name in packaging["patches"]:
        run(["git", "apply", f"debian/patches/{name}"], cwd=into, env=alone)
