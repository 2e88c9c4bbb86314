"""What the splice build is made from: wheels, fetched once into the cache."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .console import fail, say, step
from .project import Project, cache_dir, complete_or_absent, locked

# What the build compiles and links against; the rest of the wheel (two GB) is
# copied from archive to archive without being unpacked.
_STOCK_PARTS = re.compile(
    r"torch/include/.*|torch/lib/lib(c10|c10_cuda|torch_cpu|torch_python)\.so"
)

_CUDA_PARTS = re.compile(r"nvidia/[^/]*/(include|lib)/.*")

_INTERPRETER_QUESTIONS = """
import json, sys, sysconfig
print(json.dumps({
    "executable": sys.executable,
    "version": "%d.%d" % sys.version_info[:2],
    "include": sysconfig.get_path("include"),
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python that the wheel is for."""

    executable: str
    version: str
    include: str
    suffix: str

    @classmethod
    def ask(cls, command: str, supported: Iterable[str]) -> Interpreter:
        try:
            said = subprocess.run(
                [command, "-c", _INTERPRETER_QUESTIONS],
                text=True,
                capture_output=True,
                check=True,
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            fail(f"--python {command}: cannot be run")
        found = cls(**json.loads(said))
        if found.version not in supported:
            fail(f"Python {found.version}: stock wheels are for {', '.join(supported)}")
        if not Path(found.include, "Python.h").is_file():
            fail(
                f"Python {found.version} has no headers ({found.include}/Python.h); "
                f"install its development package"
            )
        return found

    @property
    def tag(self) -> str:
        return "cp" + self.version.replace(".", "")


def fetch_wheel(requirement: str, python: Interpreter) -> Path:
    """The wheel of an exact requirement, from the cache or else from pip."""
    folder = cache_dir("wheels")
    name, _, version = requirement.partition("==")
    pattern = f"{re.sub(r'[-_.]+', '_', name)}-{version}-*.whl"

    def cached() -> Path | None:
        tags = (f"-{python.tag}-", "-py3-", ".py3-")
        found = [f for f in folder.glob(pattern) if any(t in f.name for t in tags)]
        return found[0] if found else None

    if wheel := cached():
        return wheel
    with (
        locked(folder / ".lock"),
        tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as partial,
    ):
        if wheel := cached():
            return wheel  # another run was faster
        say(f"download {requirement}")
        pip = [python.executable, "-m", "pip", "download", "--no-deps"]
        pip += ["--only-binary=:all:", "--dest", partial, requirement]
        done = subprocess.run(pip, stdout=sys.stderr)
        files = list(Path(partial).glob("*.whl"))
        if done.returncode != 0 or not files:
            fail(
                f"cannot download {requirement}: pip's message is above; "
                f"offline, put its wheel into {folder}"
            )
        files[0].rename(folder / files[0].name)
    wheel = cached()
    assert wheel is not None
    return wheel


def unpack_stock(wheel: Path) -> Path:
    """The ``torch`` folder of a stock wheel, as far as the build needs it."""
    return _unpack(wheel, "stock", _STOCK_PARTS) / "torch"


def fetch_cuda(project: Project, python: Interpreter) -> list[Path]:
    """The ``nvidia/*`` folders (include/, lib/) of CUDA's headers and runtime."""
    required = project.upstream["cuda_headers"]["requirements"]
    folders = [
        _unpack(fetch_wheel(name, python), "cuda", _CUDA_PARTS) for name in required
    ]
    return [
        include.parent
        for folder in folders
        for include in folder.glob("nvidia/*/include")
    ]


def _unpack(wheel: Path, kind: str, parts: re.Pattern[str]) -> Path:
    """A folder of the cache with the members of a wheel that match ``parts``."""
    folder = cache_dir(kind) / wheel.stem
    with locked(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            with (
                step(f"unpack {wheel.name}"),
                complete_or_absent(folder) as partial,
                zipfile.ZipFile(wheel) as archive,
            ):
                names = [n for n in archive.namelist() if parts.fullmatch(n)]
                archive.extractall(partial, names)
    return folder
