"""Splicing a wheel, and bringing an installed one up to date."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from remat_build.environment import update_installed
from remat_build.wheelfile import record_hash, splice

STOCK = {
    "torch/kept.py": b"kept = 1\n" * 100,
    "torch/changed.py": b"changed = 1\n",
    "torch/lib/libc10.so": b"\x7fELF" + bytes(range(256)) * 50,
    "torch-2.6.0.dist-info/METADATA": b"Name: torch\nVersion: 2.6.0\n",
    "torch-2.6.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
}
CHANGED = {
    "torch/changed.py": b"changed = 2\n",
    "torch/added.py": b"added = 1\n",
    "torch-2.6.0+remat1.dist-info/METADATA": b"Name: torch\nVersion: 2.6.0+remat1\n",
    "torch-2.6.0+remat1.dist-info/WHEEL": (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
}


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    path = tmp_path / "torch-2.6.0-py3-none-any.whl"
    rows = [(name, record_hash(data), len(data)) for name, data in STOCK.items()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in STOCK.items():
            archive.writestr(name, data)
        archive.writestr("torch-2.6.0.dist-info/RECORD", text.getvalue())
    return path


def spliced(stock: Path, changed: dict[str, bytes] = CHANGED) -> Path:
    path = stock.with_name("torch-2.6.0+remat1-py3-none-any.whl")
    with open(path, "w+b") as stream:
        splice(stock, stream, changed, "2.6.0+remat1")
    return path


def test_replaces_adds_and_keeps(stock: Path) -> None:
    with zipfile.ZipFile(spliced(stock)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len(set(names))
        assert not [name for name in names if name.startswith("torch-2.6.0.dist-info")]
        for name, data in {**STOCK, **CHANGED}.items():
            if not name.startswith("torch-2.6.0.dist"):
                assert archive.read(name) == data


def test_unchanged_members_keep_their_compressed_bytes(stock: Path) -> None:
    with zipfile.ZipFile(stock) as old, zipfile.ZipFile(spliced(stock)) as new:
        for name in ("torch/kept.py", "torch/lib/libc10.so"):
            assert new.getinfo(name).compress_size == old.getinfo(name).compress_size
            assert new.getinfo(name).CRC == old.getinfo(name).CRC


def test_record_is_complete_and_right(stock: Path) -> None:
    with zipfile.ZipFile(spliced(stock)) as archive:
        record = archive.read("torch-2.6.0+remat1.dist-info/RECORD").decode()
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(record))}
        assert set(rows) == set(archive.namelist())
        assert rows.pop("torch-2.6.0+remat1.dist-info/RECORD") == ["", ""]
        for name, row in rows.items():
            data = archive.read(name)
            assert row == [record_hash(data), str(len(data))]


def test_same_inputs_give_the_same_bytes(stock: Path) -> None:
    assert spliced(stock).read_bytes() == spliced(stock).read_bytes()


def test_update_makes_an_installed_wheel_equal_to_a_new_one(
    stock: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", site, spliced(stock)], check=True)
    later = {
        **CHANGED,
        "torch/changed.py": b"changed = 3\n",
        "torch/new.py": b"n = 1\n",
    }
    del later["torch/added.py"]
    kept = (site / "torch/kept.py").stat().st_ino
    update_installed(spliced(stock, later), site)
    assert (site / "torch/changed.py").read_bytes() == b"changed = 3\n"
    assert (site / "torch/new.py").exists()
    assert not (site / "torch/added.py").exists()
    assert (site / "torch/kept.py").stat().st_ino == kept
    record = (site / "torch-2.6.0+remat1.dist-info/RECORD").read_text()
    assert "torch/new.py" in record
    assert "torch/added.py" not in record
    assert "INSTALLER" in record
