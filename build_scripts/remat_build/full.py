"""The full build: the patched tree compiled by upstream's own setup.py and CMake."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from . import distribution, sources
from .components import Interpreter
from .console import fail, run, say, step
from .libraries import Libraries
from .ninja import Ninja
from .project import Project, cache_dir, content_hash, locked
from .series import build_info
from .tree import Tree, prepare

# Libraries that a CUDA wheel takes from the machine: its driver and toolkit.
_OF_CUDA = ("libcuda.so*", "libcu*.so*", "libnv*.so*", "libnccl*.so*")

_PYBIND11_HEADERS = "import pybind11; print(pybind11.get_include(), end='')"

# A compute capability, as upstream's CMake files read them.
_ARCHITECTURE = re.compile(r"\d+\.\da?(\+PTX)?")


@dataclass(frozen=True)
class FullBuild:
    """One build of one flavour.

    Args:
        source: a tree of the user's; None for Debian's source package.
        cuda: the architectures, as TORCH_CUDA_ARCH_LIST has them; None for the CPU.
    """

    project: Project
    python: Interpreter
    source: Path | None
    cuda: str | None
    jobs: int

    @property
    def tree(self) -> Path:
        name = "upstream-full" if self.cuda is None else "upstream-full-cuda"
        return self.project.build / (name + ("-source" if self.source else ""))

    @property
    def folder(self) -> Path:
        """Where upstream's setup.py has CMake build."""
        return self.tree / "build"

    @property
    def _libraries(self) -> Libraries:
        return Libraries(self.project, self.jobs)

    def packages(self) -> list[str]:
        """The Debian packages that it needs."""
        full = self.project.upstream["full"]
        if self.source and not distribution.is_stripped(self.source):
            return full["debian_packages"]
        return full["debian_packages"] + full["debian_libraries"]

    def lock(self) -> AbstractContextManager[None]:
        """To be held while any of the rest is done."""
        return locked(self.project.build / f".{self.tree.name}-build-lock")

    def build(self, out: Path) -> Path:
        """Build everything, and write the wheel into ``out``; return its path."""
        self.configure()
        self.compile()
        return self._package(out)

    def compile(self, *targets: str) -> None:
        """Build some targets; without any, all."""
        Ninja(self.folder, self.jobs, self._environment()).run(targets)

    def configure(self) -> None:
        """Prepare the tree, and configure it unless that is done."""
        self._check_cuda()
        self._check_disk()
        self._prepare()
        if self.configured == self._settings:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        log = self.tree / "configure.log"
        with step("configure"):
            self._setup_py("build", "--cmake-only", log=log)
        shutil.move(log, self.folder / log.name)
        self._note.write_text(json.dumps(self._settings, sort_keys=True))

    @property
    def configured(self) -> dict[str, str]:
        """The settings of the build folder that there is; without one, none."""
        return json.loads(self._note.read_text()) if self._note.is_file() else {}

    @property
    def _note(self) -> Path:
        return self.folder / "remat.json"

    def _setup_py(self, *words: str | Path, log: Path) -> None:
        """Run upstream's setup.py."""
        with open(log, "w") as stream:
            done = subprocess.run(
                [self._tool("python"), "setup.py", *words],
                cwd=self.tree,
                env=self._environment(),
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        if done.returncode != 0:
            say(_complaint(log.read_text()))
            fail(f"setup.py {words[0]} failed; its messages are in {log}")

    def _check_cuda(self) -> None:
        if self.cuda is None:
            return
        self._cuda_home()
        for name in re.split(r"[;\s]+", self.cuda):
            if not _ARCHITECTURE.fullmatch(name):
                fail(
                    f"--cuda {self.cuda}: {name!r} is not an architecture; "
                    'write them as in "8.0;9.0+PTX"'
                )

    def _check_disk(self) -> None:
        needed = self.project.upstream["full"]["gigabytes"]
        self.project.build.mkdir(exist_ok=True)
        free = shutil.disk_usage(self.project.build).free / 1e9
        if not self.folder.is_dir() and free < needed:
            fail(
                f"the build needs {needed} GB; {self.project.build} has {free:.0f} free"
            )

    def _prepare(self) -> None:
        debian = self.project.upstream["debian"]
        fetch: Callable[[Path], None]
        if self.source is None:
            source = f"debian {debian['sha256']}"
            fetch = partial(sources.from_debian, self.project)
        else:
            key = sources.fingerprint(self.source, submodules=True)
            source = f"tree {self.source} {key}"
            sources.check_version(self.project, self.source)
            fetch = partial(sources.from_tree, self.source, submodules=True)
        source += f" {distribution.settings_text(self.project)}"
        with locked(self.tree.with_name(f".{self.tree.name}-lock")):
            prepare(
                self.project,
                self.tree,
                source=source,
                fetch=fetch,
                finish=self._finish,
            )
        info = self.tree / "torch/cuda/remat/_build_info.py"
        info.write_text(build_info(self.project))

    def _finish(self, tree: Tree) -> None:
        if distribution.is_stripped(tree.path):
            flatc = self._libraries.prefix("flatbuffers") / "bin/flatc"
            distribution.add_packaging(self.project, tree, flatc)
        shutil.copyfile(self.project.root / "LICENSE", tree.path / "LICENSE.remat")
        tree.git("add", "LICENSE.remat")
        tree.git("commit", "--quiet", "--no-verify", "--message=licence of the fork")
        # Upstream's build writes among the sources; that is no work to be saved.
        tree.git("config", "status.showUntrackedFiles", "no")

    @cached_property
    def _settings(self) -> dict[str, str]:
        """What upstream's build is told, as environment variables; the user's win,
        but for those that this script has options for. Needs the prepared tree."""
        full = self.project.upstream["full"]
        settings = {
            "BUILD_TEST": "0",
            "PYTORCH_BUILD_VERSION": self.version,
            "PYTORCH_BUILD_NUMBER": "1",
        }
        stripped = distribution.is_stripped(self.tree)
        if stripped:
            settings |= full["distribution"]
            if self.cuda is not None:
                settings |= full["distribution_cuda"]
        settings |= {
            name: value
            for name, value in os.environ.items()
            if name in settings or name.startswith(("BUILD_", "USE_", "CMAKE_"))
        }
        settings["USE_CUDA"] = "0" if self.cuda is None else "1"
        if self.cuda is not None:
            settings["TORCH_CUDA_ARCH_LIST"] = self.cuda
        if stripped:
            prefixes = self._libraries.prefixes(settings)
            pybind11 = run([self._tool("python"), "-m", "pybind11", "--cmakedir"])
            roots = [*map(str, prefixes), pybind11.strip()]
            if self.cuda is not None:
                roots.append(str(self._cuda_home()))
            roots += filter(None, [os.environ.get("CMAKE_PREFIX_PATH")])
            flags = [f"-isystem {prefix}/include" for prefix in prefixes]
            flags += filter(None, [os.environ.get("CXXFLAGS")])
            settings["CMAKE_PREFIX_PATH"] = ";".join(roots)
            settings["CXXFLAGS"] = " ".join(flags)
        return settings

    def _environment(self) -> dict[str, str]:
        """The variables of this process, upstream's settings, and ccache's: objects
        are shared by all checkouts, which differ in their base folder only."""
        folders = [self._tools / "bin"]
        if self.cuda is not None:
            folders.append(self._cuda_home() / "bin")
        return {
            "CCACHE_DIR": str(cache_dir("ccache")),
            "CCACHE_MAXSIZE": "10G",
            "CCACHE_BASEDIR": str(self.tree),
            "CCACHE_NOHASHDIR": "1",
            **os.environ,
            **self._settings,
            "MAX_JOBS": str(self.jobs),
            "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        }

    @property
    def version(self) -> str:
        """2.6.0+remat1.cpu, or +remat1.cu124 by the toolkit that is found."""
        return f"{self.project.version}.{self._flavour()}"

    def _flavour(self) -> str:
        if self.cuda is None:
            return "cpu"
        nvcc = self._cuda_home() / "bin/nvcc"
        release = re.search(r"release (\d+)\.(\d+)", run([nvcc, "--version"]))
        assert release is not None
        return f"cu{release[1]}{release[2]}"

    def _cuda_home(self) -> Path:
        home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        nvcc = shutil.which("nvcc", path=f"{home / 'bin'}:{os.environ['PATH']}")
        if not nvcc:
            fail("--cuda needs the CUDA toolkit: no nvcc in PATH; or set CUDA_HOME")
        return Path(nvcc).parents[1]

    @property
    def _tools(self) -> Path:
        """The virtual environment in which upstream's scripts run."""
        return cache_dir("full") / self.python.tag

    def _tool(self, name: str) -> Path:
        folder = self._tools
        requirements = self.project.root / "build_scripts/requirements-full.txt"
        note = folder / "remat.json"
        key = content_hash(requirements.parent, [requirements.name])
        key += self.python.executable
        with locked(folder.with_name(f".{folder.name}.lock")):
            if not note.is_file() or note.read_text() != key:
                with step(f"set up {folder}"):
                    run([self.python.executable, "-m", "venv", "--clear", folder])
                    pip = f"{folder}/bin/pip"
                    run([pip, "install", "--quiet", "--requirement", requirements])
                note.write_text(key)
        return folder / "bin" / name

    def _package(self, out: Path) -> Path:
        """Let setup.py write its wheel, and complete it with the libraries that a
        clean machine of this platform does not have."""
        raw = self.tree / "dist"
        self._forget_written(raw)
        if distribution.is_stripped(self.tree):
            pybind11 = run([self._tool("python"), "-c", _PYBIND11_HEADERS])
            prefixes = self._libraries.prefixes(self._settings)
            include = self.tree / "torch/include"
            distribution.add_headers(self.project, prefixes, Path(pybind11), include)
        with step("write the wheel"):
            log = self.folder / "wheel.log"
            self._setup_py("bdist_wheel", "--dist-dir", raw, log=log)
        repaired = raw / "repaired"
        repair = [sys.executable, "-m", "auditwheel", "repair"]
        if self.cuda is not None:
            repair += [f"--exclude={name}" for name in _OF_CUDA]
        with step("add the libraries it needs"):
            run([*repair, f"--wheel-dir={repaired}", *raw.glob("*.whl")])
        out.mkdir(parents=True, exist_ok=True)
        for older in out.glob(f"torch-{self.version}-{self.python.tag}-*.whl"):
            older.unlink()
        return Path(shutil.move(next(repaired.glob("*.whl")), out))

    def _forget_written(self, raw: Path) -> None:
        """Empty the folders that the wheel is put together in: CMake and setup.py
        only add to them, and what is no longer made would stay in the wheel."""
        for folder in (raw, self.tree / "torch/include", *self.folder.glob("lib.*")):
            shutil.rmtree(folder, ignore_errors=True)


def _complaint(log: str) -> str:
    """The first error of a log, with what stands around it."""
    lines = log.splitlines()
    error = re.compile(r"CMake Error|\b[Ee]rror: ")
    about = (i for i, line in enumerate(lines) if error.search(line))
    at = next(about, len(lines) - 1)
    return "\n".join(lines[max(0, at - 2) : at + 15])
