"""The splice build: which libraries, compiled how, put where in the wheel."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.elfutils import elf_find_versioned_symbols
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from elftools.elf.elffile import ELFFile

from . import cpuinfo
from .components import Interpreter, fetch_cuda, fetch_wheel, unpack_stock
from .console import fail, run_compiler, step
from .patchset import PatchSet
from .project import Project, files_under
from .series import PYTHON_FILE, build_info
from .wheelfile import read_dist_info, splice

# Overlay folder in the tree -> where its headers lie in the wheel.
_HEADERS = {
    "c10/remat": "torch/include/c10/remat",
    "c10/cuda/remat": "torch/include/c10/cuda/remat",
    "aten/src/ATen/remat": "torch/include/ATen/remat",
    "torch/csrc/cuda/remat": "torch/include/torch/csrc/cuda/remat",
}
_PACKAGE = "torch/cuda/remat"


@dataclass(frozen=True)
class Splice:
    """One build of one wheel."""

    project: Project
    tree: Path
    python: Interpreter
    jobs: int
    rebuild: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.project.build / f"splice-{self.python.tag}"

    def build(self, out: Path) -> Path:
        """Compile, and write the wheel into ``out``; return its path."""
        _check_programs()
        stock_wheel = fetch_wheel(
            self.project.upstream["stock"]["requirement"], self.python
        )
        stock = unpack_stock(stock_wheel)
        self._stage(stock)
        with step(f"compile {', '.join(self.rebuild)}, torch_remat"):
            self._compile(stock)
        binaries = self._binaries()
        platform = platform_tag(binaries.values())
        files = binaries | self._headers() | self._python_files()
        changed = {name: path.read_bytes() for name, path in files.items()}
        changed |= self._metadata(stock_wheel, platform)
        version, tag = self.project.version, self.python.tag
        wheel = out / f"torch-{version}-{tag}-{tag}-{platform}.whl"
        out.mkdir(parents=True, exist_ok=True)
        partial = wheel.with_suffix(".partial")
        with step(f"write {wheel.name}"), open(partial, "w+b") as stream:
            splice(stock_wheel, stream, changed, version)
        for older in out.glob(f"torch-{version}-{tag}-{tag}-*.whl"):
            older.unlink()
        partial.rename(wheel)
        return wheel

    def _stage(self, stock: Path) -> None:
        """Lay out the headers and the cpuinfo that the compiler is given."""
        include, generated = self.folder / "include", self.folder / "generated"
        for folder in (include, generated):
            shutil.rmtree(folder, ignore_errors=True)
        for name, file in self._headers().items():
            # A link keeps the time of the header, so that nothing is rebuilt.
            link = include / Path(name).relative_to("torch/include")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        for name in ("c10/macros/cmake_macros.h", "c10/cuda/impl/cuda_cmake_macros.h"):
            target = generated / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(stock / "include" / name)
        if "c10" in self.rebuild and not (self.folder / "cpuinfo/cpuinfo.S").is_file():
            cpuinfo.carve(stock / "lib/libc10.so", self.folder / "cpuinfo")

    def _compile(self, stock: Path) -> None:
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "REMAT_TREE": self.tree,
            "REMAT_STOCK": stock,
            "REMAT_OVERLAY": self.folder / "include",
            "REMAT_GENERATED": self.folder / "generated",
            "REMAT_CPUINFO": self.folder / "cpuinfo",
            "REMAT_REBUILD": ";".join(self.rebuild),
            "REMAT_RPATH": _rpath(stock / "lib/libc10.so"),
            "REMAT_PYTHON_INCLUDE": self.python.include,
            "REMAT_PYTHON_SUFFIX": self.python.suffix,
        }
        if "c10_cuda" in self.rebuild:
            parts = fetch_cuda(self.project, self.python)
            runtime = next(p for p in parts if p.name == "cuda_runtime")
            settings["REMAT_CUDA_INCLUDE"] = ";".join(f"{p}/include" for p in parts)
            settings["REMAT_CUDART"] = runtime / "lib/libcudart.so.12"
        source = self.project.root / "build_scripts/splice"
        folder = self.folder / "cmake"
        configure = ["cmake", "-G", "Ninja", "-S", source, "-B", folder]
        configure += [f"-D{name}={value}" for name, value in settings.items()]
        run_compiler([str(word) for word in configure])
        run_compiler(["ninja", "-C", str(folder), f"-j{self.jobs}"], progress=True)

    def _binaries(self) -> dict[str, Path]:
        """Name in the wheel -> file, of everything that was compiled."""
        libraries = self.folder / "cmake/lib"
        names = [f"lib{name}.so" for name in (*self.rebuild, "torch_remat")]
        binaries = {f"torch/lib/{name}": libraries / name for name in names}
        extension = f"_C{self.python.suffix}"
        binaries[f"{_PACKAGE}/{extension}"] = libraries / extension
        if "c10" in self.rebuild:
            name = cpuinfo.LIBRARY
            binaries[f"torch/lib/{name}"] = self.folder / "cpuinfo" / name
        return binaries

    def _headers(self) -> dict[str, Path]:
        """Name in the wheel -> file, of our headers and the patched ones."""
        headers = {}
        for folder, shipped in _HEADERS.items():
            for file in files_under(self.tree / folder):
                if file.suffix == ".h":
                    name = file.relative_to(self.tree / folder).as_posix()
                    headers[f"{shipped}/{name}"] = file
        for name in PatchSet(self.project.patches).touched:
            if name.startswith("c10/") and name.endswith(".h"):
                headers[f"torch/include/{name}"] = self.tree / name
        return headers

    def _python_files(self) -> dict[str, Path]:
        """The Python package, and the upstream Python files that are patched."""
        files = {
            f"{_PACKAGE}/{file.relative_to(self.tree / _PACKAGE).as_posix()}": file
            for file in files_under(self.tree / _PACKAGE)
        }
        for name in PatchSet(self.project.patches).touched:
            if PYTHON_FILE.fullmatch(name):
                files[name] = self.tree / name
        return files

    def _metadata(self, stock: Path, platform: str) -> dict[str, bytes]:
        project, version = self.project, self.project.version
        info = f"torch-{version}.dist-info"
        stock_version = project.upstream["version"]
        metadata = _replace_once(
            read_dist_info(stock, "METADATA"),
            f"\nVersion: {stock_version}\n",
            f"\nVersion: {version}\n",
        )
        files = {
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: torch-remat\n"
            "Root-Is-Purelib: false\n"
            f"Tag: {self.python.tag}-{self.python.tag}-{platform}\n",
            "torch/version.py": _version_py(stock, version),
            f"{_PACKAGE}/_build_info.py": build_info(project),
        }
        licence = project.root / "LICENSE"
        if licence.is_file():
            metadata = _replace_once(
                metadata,
                "\nLicense-File: LICENSE\n",
                "\nLicense-File: LICENSE\nLicense-File: LICENSE.remat\n",
            )
            files[f"{info}/LICENSE.remat"] = licence.read_text()
        files[f"{info}/METADATA"] = metadata
        return {name: text.encode() for name, text in files.items()}


def _check_programs() -> None:
    for program in ("cmake", "ninja"):
        if not shutil.which(program):
            fail(f"{program} is not installed (Debian: cmake, ninja-build)")
    if not shutil.which(os.environ.get("CXX", "c++")):
        fail("no C++ compiler found (Debian: g++); or set CXX")


def platform_tag(binaries: Iterable[Path]) -> str:
    """The platform tag that auditwheel finds for the given binaries."""
    versions: dict[str, set[str]] = {}
    for path in binaries:
        with open(path, "rb") as stream:
            for library, version in elf_find_versioned_symbols(ELFFile(stream)):
                versions.setdefault(library, set()).add(version)
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.detect())
    return policies.versioned_symbols_policy(versions).name


def _rpath(library: Path) -> str:
    with open(library, "rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        return next(tag.rpath for tag in dynamic.iter_tags("DT_RPATH"))


def _version_py(stock: Path, version: str) -> str:

    with zipfile.ZipFile(stock) as archive:
        text = archive.read("torch/version.py").decode()
    return re.sub(
        r"(?m)^__version__ = .*$", f"__version__ = '{version}'", text, count=1
    )


def _replace_once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        fail(f"the stock wheel's metadata has no single {old.strip()!r}; is it stock?")
    return text.replace(old, new)
