"""One environment for tests, demo and benchmarks: the built wheel, installed.

It lives in the cache, one per checkout and Python, so that two checkouts never
change each other's. Steps that are up to date are skipped; when only our own files
changed, they alone are replaced in it, which takes seconds where installing the
two-gigabyte wheel again takes a minute.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .components import Interpreter, fetch_wheel
from .console import fail, run, say, step
from .patchset import PatchSet
from .project import Project, cache_dir, content_hash, locked
from .wheelfile import dist_info_of, read_record

# What a wheel depends on; the rest of the checkout changes nothing in it.
_BUILD_INPUTS = (
    "LICENSE",
    "patches",
    "build_scripts/build_wheel.py",
    "build_scripts/prepare_tree.py",
    "build_scripts/requirements.txt",
    "build_scripts/upstream.toml",
    "build_scripts/remat_build",
    "build_scripts/splice",
)


@dataclass(frozen=True)
class Environment:
    """The virtual environment of a checkout for one Python.

    Args:
        wheel: install this one instead of the one that the splice build writes, in
            an environment of its own.
    """

    project: Project
    python: Interpreter
    wheel: Path | None = None

    @property
    def folder(self) -> Path:
        text = f"{self.project.root}\0{self.python.executable}"
        if self.wheel:
            text += f"\0{self.wheel}"
        key = hashlib.sha256(text.encode()).hexdigest()
        return cache_dir("env") / f"{self.python.tag}-{key[:12]}"

    def ensure(self, packages: list[str]) -> Path:
        """Bring everything up to date; return the environment's bin folder."""
        with locked(self.folder.with_name(f".{self.folder.name}.lock")):
            _forget_environments_of_deleted_checkouts()
            install_debian_packages(packages)
            self._ensure_installed(self.wheel or self._ensure_wheel())
        return self.folder / "bin"

    def _ensure_wheel(self) -> Path:
        """The wheel of the sources as they are now."""
        note = self.project.build / f"wheel-{self.python.tag}.json"
        inputs = [*_BUILD_INPUTS, *_overlay_folders(self.project)]
        key = content_hash(self.project.root, inputs, salt=self.python.executable)
        known = _read_note(note)
        if known.get("key") == key and Path(known["wheel"]).is_file():
            return Path(known["wheel"])
        build = self.project.root / "build_scripts/build_wheel.py"
        done = subprocess.run(
            [sys.executable, build, "--python", self.python.executable],
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        wheel = Path(done.stdout.splitlines()[-1])
        note.write_text(json.dumps({"key": key, "wheel": str(wheel)}))
        return wheel

    def _ensure_installed(self, wheel: Path) -> None:
        note = self.folder / "remat.json"
        known = _read_note(note)
        stat = wheel.stat()
        wheel_key = f"{wheel} {stat.st_size} {stat.st_mtime_ns}"
        packages_key = content_hash(self.project.root, self._requirement_files())
        if known.get("packages") != packages_key:
            note.unlink(missing_ok=True)
            self._install(wheel)
        elif known["wheel"] == wheel_key:
            return
        note.unlink(missing_ok=True)
        # After pip, too: a wheel of the same version is the same wheel to it.
        with step("update the environment"):
            update_installed(wheel, self.site_packages)
        note.write_text(
            json.dumps(
                {
                    "checkout": str(self.project.root),
                    "packages": packages_key,
                    "wheel": wheel_key,
                }
            )
        )

    def _install(self, wheel: Path) -> None:
        python = self.folder / "bin/python"
        if not python.exists():
            with step(f"set up {self.folder}"):
                run([self.python.executable, "-m", "venv", self.folder])
        # Linked with stock's ABI, which a wheel from elsewhere need not have.
        stock = self.project.upstream["stock"]
        companions = [] if self.wheel else stock["companions"]
        local = [fetch_wheel(name, self.python) for name in companions]
        pip = [python, "-m", "pip", "install", "--upgrade", "--no-compile"]
        pip += [wheel, *local]
        requirements, *constraints = self._requirement_files()
        pip += ["--requirement", self.project.root / requirements]
        for constraint in constraints:
            pip += ["--constraint", self.project.root / constraint]
        pip += ["--find-links", cache_dir("wheels")]
        with step("install the wheel and what the tests need"):
            command = [str(word) for word in pip]
            if subprocess.run(command, stdout=sys.stderr).returncode != 0:
                fail("pip's message is above; run again to go on where it stopped")

    def _requirement_files(self) -> list[str]:
        pinned = f"build_scripts/constraints-{self.python.tag}.txt"
        files = ["test/requirements.txt"]
        return files + [pinned] if (self.project.root / pinned).is_file() else files

    @property
    def site_packages(self) -> Path:
        return self.folder / f"lib/python{self.python.version}/site-packages"


def install_debian_packages(packages: list[str]) -> None:
    """Install what is missing, where this is a Debian machine."""
    if not shutil.which("dpkg-query"):
        return
    format_ = "--showformat=${Package} ${db:Status-Status}\n"
    query = ["dpkg-query", "--show", format_, *packages]
    listed = subprocess.run(query, text=True, capture_output=True).stdout
    installed = {
        line.split()[0] for line in listed.splitlines() if line.endswith(" installed")
    }
    missing = [name for name in packages if name not in installed]
    if not missing:
        return
    say(f"install with apt: {' '.join(missing)}")
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    if prefix and not shutil.which("sudo"):
        fail(f"not root and no sudo; have these installed: {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", *missing]):
        done = subprocess.run(
            [*prefix, "apt-get", *command], env=environment, stdout=sys.stderr
        )
        if done.returncode != 0:
            fail(f"apt-get could not install {' '.join(missing)}")


def update_installed(wheel: Path, site_packages: Path) -> None:
    """Make an installed torch equal to ``wheel``, touching only what differs."""
    with zipfile.ZipFile(wheel) as archive:
        info = dist_info_of(archive)
        record = site_packages / info / "RECORD"
        new = {
            name: rest for name, *rest in read_record(archive.read(f"{info}/RECORD"))
        }
        old = {name: rest for name, *rest in read_record(record.read_bytes())}
        for name, rest in new.items():
            if old.get(name) != rest and not name.endswith("/RECORD"):
                _replace_file(site_packages / name, archive.read(name))
        kept = {}
        for name, rest in old.items():
            if name in new:
                continue
            if _made_by_pip(name):
                kept[name] = rest
            else:
                (site_packages / name).unlink(missing_ok=True)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows((name, *rest) for name, rest in {**kept, **new}.items())
        _replace_file(record, text.getvalue().encode())


def _made_by_pip(name: str) -> bool:
    return (
        name.endswith((".pyc", "/INSTALLER", "/REQUESTED", "/direct_url.json"))
        or name.startswith("../")
    )  # fmt: skip


def _replace_file(path: Path, data: bytes) -> None:
    """Put a new file in place of the old, which running processes keep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.chmod(0o755 if ".so" in path.suffixes else 0o644)
    new.replace(path)


def _overlay_folders(project: Project) -> list[str]:
    return sorted(PatchSet(project.patches).overlay)


def _read_note(path: Path) -> dict[str, str]:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _forget_environments_of_deleted_checkouts() -> None:
    for note in cache_dir("env").glob("*/remat.json"):
        checkout = _read_note(note).get("checkout")
        if checkout and not Path(checkout).is_dir():
            say(f"remove the environment of {checkout}, which is gone")
            shutil.rmtree(note.parent)
