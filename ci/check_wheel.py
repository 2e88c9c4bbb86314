"""Check the wheel: what is in it, what it exports, and that it acts as stock.

Started by check_wheel.sh. The static part compares the wheel with the stock one;
the other installs it in a clean environment and runs it beside stock.
"""

from __future__ import annotations

import argparse
import base64
import collections
import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "build_scripts"))

from elftools.elf.elffile import ELFFile  # noqa: E402

from remat_build.components import Interpreter, fetch_wheel, unpack_stock  # noqa: E402
from remat_build.console import one_line_errors, run, say, step  # noqa: E402
from remat_build.patchset import PatchSet  # noqa: E402
from remat_build.project import Project, cache_dir  # noqa: E402
from remat_build.splice import platform_tag  # noqa: E402

# Where the wheel may differ from stock; patched Python files are added to this.
_OURS = re.compile(
    r"torch/cuda/remat/.*"
    r"|torch/lib/lib(c10|c10_cuda|torch_remat|cpuinfo_stock)\.so"
    r"|torch/include/(c10/remat|c10/cuda/remat|ATen/remat|torch/csrc/cuda/remat)/.*\.h"
    r"|torch/version\.py"
    r"|torch-[^/]*\.dist-info/(METADATA|WHEEL|RECORD|LICENSE\.remat)"
)
# The runtime that every platform with our tag has. Stock was linked on an older
# one, with the newer parts of it (libstdc++_nonshared) inside its libraries.
_RUNTIME = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libitm.so.1")
_LINKER_MADE = {"_init", "_fini", "__bss_start", "_edata", "_end"}


def check_record(wheel: Path) -> Iterator[str]:
    """Every file is in RECORD with its hash and size, and the other way round."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        text = archive.read(record).decode()
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(text))}
        for name, count in collections.Counter(names).items():
            if count > 1:
                yield f"{name} is in the archive {count} times"
        for name in sorted(set(names) ^ set(rows)):
            yield f"{name} is not in both the archive and RECORD"
        for name in names:
            if name == record or name not in rows:
                continue
            digest, size = hashlib.sha256(), 0
            with archive.open(name) as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                    size += len(block)
            found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
            if rows[name] != [f"sha256={found}", str(size)]:
                yield f"{name}: RECORD has another hash or size"


def check_differences(wheel: Path, stock: Path, patched: list[str]) -> Iterator[str]:
    """Only what the fork changes differs from stock; nothing of stock is gone."""

    def contents(path: Path) -> dict[str, tuple[int, int, int]]:
        with zipfile.ZipFile(path) as archive:
            return {
                re.sub(r"^torch-[^/]*\.dist-info", "torch.dist-info", info.filename): (
                    info.CRC,
                    info.file_size,
                    info.external_attr,
                )
                for info in archive.infolist()
            }

    ours, theirs = contents(wheel), contents(stock)
    for name in sorted(set(theirs) - set(ours)):
        yield f"{name} of the stock wheel is missing"
    for name in sorted(ours):
        full = name.replace("torch.dist-info", "torch-x.dist-info")
        if ours[name] != theirs.get(name) and not (
            _OURS.fullmatch(full) or name in patched
        ):
            yield f"{name} differs from stock"


def check_metadata(wheel: Path, version: str, rebuilt: list[Path]) -> Iterator[str]:
    from packaging.specifiers import SpecifierSet
    from packaging.utils import parse_wheel_filename

    name, found, _, tags = parse_wheel_filename(wheel.name)
    if name != "torch" or str(found) != version or found not in SpecifierSet("==2.6.0"):
        yield f"{wheel.name}: not torch {version}"
    with zipfile.ZipFile(wheel) as archive:
        info = f"torch-{version}.dist-info"
        if f"\nVersion: {version}\n" not in archive.read(f"{info}/METADATA").decode():
            yield "METADATA has another version than the file name"
        listed = re.findall(r"(?m)^Tag: (.*)$", archive.read(f"{info}/WHEEL").decode())
    if listed != [str(tag) for tag in tags]:
        yield f"WHEEL has the tags {listed}, the file name {[str(t) for t in tags]}"
    platform = platform_tag(rebuilt)
    if any(tag.platform != platform for tag in tags):
        yield f"the platform tag is not {platform}, which auditwheel finds"


def exported(library: Path) -> dict[str, str]:
    """Exported symbol -> its binding."""
    with open(library, "rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        return {
            symbol.name: symbol["st_info"]["bind"]
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_info"]["bind"] != "STB_LOCAL"
            and symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
        }


def imported(library: Path) -> set[str]:
    with open(library, "rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        return {s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}


def check_symbols(rebuilt: Path, stock: Path, users: Iterable[Path]) -> Iterator[str]:
    """Whoever was linked with the stock library finds every symbol again.

    A symbol of stock may be missing from ours if the C++ runtime exports it (stock
    holds a static part of a newer runtime), or if it is a copy that the compiler
    made of an inline function or template, which each user has for himself: then
    no stock library may import it.
    """
    ours, theirs = exported(rebuilt), exported(stock)
    runtime: set[str] = set()
    for name in _RUNTIME:
        if path := _system_library(name):
            runtime |= exported(path).keys()
    missing = set(theirs) - set(ours) - runtime - _LINKER_MADE
    for symbol in sorted(missing):
        if theirs[symbol] not in ("STB_WEAK", "STB_LOOS"):
            yield f"{rebuilt.name} does not export {symbol}"
    for user in users:
        for symbol in sorted(missing & imported(user)):
            yield f"{user.name} needs {symbol}, which {rebuilt.name} does not export"
    kept = set(theirs) & set(ours)
    say(
        f"{rebuilt.name}: of {len(theirs)} symbols of stock {len(kept)} are exported, "
        f"{len((set(theirs) - kept) & runtime)} in the C++ runtime, "
        f"{len(missing)} copies made by the compiler that nobody uses"
    )


def _system_library(name: str) -> Path | None:
    listing = subprocess.run(
        ["/sbin/ldconfig", "-p"], text=True, capture_output=True
    ).stdout
    match = re.search(
        rf"^\s*{re.escape(name)} \(libc6,x86-64\) => (\S+)", listing, re.M
    )
    return Path(match[1]) if match else None


def check_paths(binaries: list[Path], stock: Path) -> Iterator[str]:
    """No library looks for others in a folder of the build machine."""
    with open(stock, "rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        known = next(t.rpath for t in dynamic.iter_tags("DT_RPATH")).split(":")
    for binary in binaries:
        with open(binary, "rb") as stream:
            dynamic = ELFFile(stream).get_section_by_name(".dynamic")
            for tag in dynamic.iter_tags():
                if tag.entry.d_tag == "DT_RUNPATH":
                    yield f"{binary.name} has a RUNPATH, where stock has RPATH"
                if tag.entry.d_tag == "DT_RPATH":
                    for path in tag.rpath.split(":"):
                        if path not in {*known, "$ORIGIN/../../lib"}:
                            yield f"{binary.name} looks for libraries in {path}"
        if re.search(rb"/(root|home|tmp|work)/[\w.]", binary.read_bytes()):
            yield f"{binary.name} names a folder of the build machine"


# Run under stock and under ours; what it prints must be equal.
_PROBE = """
import hashlib, json, sys
import torch
from torch import nn
info = {"capability": torch.backends.cpu.get_cpu_capability()}
import ctypes
# The struct that libtorch_cpu chooses its kernels by, byte for byte.
lib = ctypes.CDLL(torch.__path__[0] + "/lib/libc10.so")
lib.cpuinfo_initialize()
info["isa"] = bytes((ctypes.c_char * 83).in_dll(lib, "cpuinfo_isa")).hex()
for name in ("processors", "cores", "packages", "l1d_caches", "l2_caches", "l3_caches"):
    info[name] = getattr(lib, f"cpuinfo_get_{name}_count")()
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(),
    nn.Linear(8 * 36, 32), nn.GELU(), nn.Linear(32, 4),
)
optimizer = torch.optim.AdamW(model.parameters())
digest = hashlib.sha256()
for step in range(5):
    loss = model(torch.randn(16, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    digest.update(loss.detach().numpy().tobytes())
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
# Copy-on-write and shared memory, whose functions are patched.
x = torch.arange(8.)
y = torch._lazy_clone(x)
y += 1
info["cow"] = [x.tolist(), y.tolist()]
info["cow"].append(x.clone().share_memory_().tolist())
info["training"] = digest.hexdigest()
print(json.dumps(info))
"""

_VISION = """
import torch, torchvision
from torchvision.ops import nms, roi_align
assert torch.__version__ == {version!r}, torch.__version__
assert torchvision.__version__.startswith("0.21.0"), torchvision.__version__
boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]])
assert nms(boxes, torch.tensor([.9, .8, .7]), .5).tolist() == [0, 2]
out = roi_align(torch.arange(64.).view(1, 1, 8, 8), [boxes[:1] / 2], 2)
assert out.shape == (1, 1, 2, 2) and out.isfinite().all()
assert not torch.cuda.remat.is_enabled()
"""


def check_installed(
    project: Project, wheel: Path, python: Interpreter, stock_lib: Path
) -> Iterator[str]:
    """Install in a clean environment, torchvision over it, and compare with stock."""
    companions = project.upstream["stock"]["companions"]
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        venv = Path(folder) / "venv"
        run([python.executable, "-m", "venv", venv])
        venv_python = venv / "bin/python"
        pip = [venv_python, "-m", "pip", "install", "--quiet", "--no-compile"]
        pip += ["--find-links", cache_dir("wheels")]
        with step("install the stock wheel"):
            run(
                [
                    *pip,
                    "numpy",
                    fetch_wheel(project.upstream["stock"]["requirement"], python),
                ]
            )
        plain = json.loads(run([venv_python, "-c", _PROBE]))
        with step("install our wheel in its place, then torchvision"):
            run([*pip, "--upgrade", wheel])
            run([*pip, *companions])
        packages = venv / f"lib/python{python.version}/site-packages"
        users = sorted(
            [*packages.glob("torch/**/*.so"), *packages.glob("torchvision/*.so")]
        )
        for rebuilt in sorted(packages.glob("torch/lib/libc10*.so")):
            with step(f"compare {rebuilt.name} with stock's, for {len(users)} users"):
                yield from check_symbols(rebuilt, stock_lib / rebuilt.name, users)
        ours = json.loads(run([venv_python, "-c", _PROBE]))
        for key in plain:
            if plain[key] != ours[key]:
                yield f"{key} is {ours[key]}; with the stock wheel it is {plain[key]}"
        run([venv_python, "-c", _VISION.format(version=project.version)])
        run([venv_python, "-m", "pip", "check"])
        run([*pip, "--dry-run", "torch==" + project.upstream["version"]])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="check_wheel.sh", description=__doc__.split("\n")[0]
    )
    parser.add_argument("wheel", type=Path, nargs="?", help="default: the one in dist/")
    parser.add_argument("--python", default=sys.executable, help="the Python it is for")
    parser.add_argument(
        "--static",
        action="store_true",
        help="only look into the wheel, do not install it",
    )
    options = parser.parse_args()
    project = Project.here()
    python = Interpreter.ask(options.python, project.upstream["matrix"]["python"])
    wheel = options.wheel or next(project.root.glob(f"dist/torch-*{python.tag}-*.whl"))
    stock = fetch_wheel(project.upstream["stock"]["requirement"], python)
    stock_lib = unpack_stock(stock) / "lib"
    patched = PatchSet(project.patches).touched

    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if re.search(r"\.so$", name) and _OURS.fullmatch(name)
        ]
        with zipfile.ZipFile(stock) as theirs:
            old = {info.filename: info.CRC for info in theirs.infolist()}
        changed = [n for n in names if old.get(n) != archive.getinfo(n).CRC]
        archive.extractall(folder, changed)
        binaries = [Path(folder, name) for name in changed]
        if options.static:  # else when it is installed, with more users
            users = sorted(stock_lib.glob("*.so"))
            for binary in binaries:
                if (stock_lib / binary.name).is_file():
                    problems += check_symbols(binary, stock_lib / binary.name, users)
        problems += check_paths(binaries, stock_lib / "libc10.so")
        problems += check_metadata(wheel, project.version, binaries)
    problems += check_differences(wheel, stock, patched)
    with step("verify RECORD"):
        problems += check_record(wheel)
    if not options.static:
        problems += check_installed(project, wheel, python, stock_lib)
    for problem in problems:
        say(problem)
    if problems:
        raise SystemExit(1)
    print(f"{wheel.name}: as it should be")


if __name__ == "__main__":
    with one_line_errors():
        main()
