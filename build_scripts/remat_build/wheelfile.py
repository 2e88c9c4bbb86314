"""Writing a wheel that differs from a stock wheel in some files only."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import zipfile
from pathlib import Path
from typing import IO

# Zip entries get a fixed time, so that the same inputs give the same wheel.
_ENTRY_TIME = (2025, 1, 29, 0, 0, 0)


def record_hash(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def splice(
    stock: Path, out: IO[bytes], changed: dict[str, bytes], version: str
) -> None:
    """Write to ``out`` the stock wheel with files replaced or added.

    Unchanged members are copied as compressed bytes. The ``.dist-info`` folder is
    renamed for ``version``; names in ``changed`` that lie in it use the new name.
    RECORD is recomputed for what changed and kept for the rest.
    """
    with zipfile.ZipFile(stock) as source, zipfile.ZipFile(out, "w") as target:
        old_info, new_info = dist_info_of(source), f"torch-{version}.dist-info"
        record = f"{new_info}/RECORD"
        rows: dict[str, tuple[str, str]] = {}
        for name, digest, size in read_record(source.read(f"{old_info}/RECORD")):
            rows[_renamed(name, old_info, new_info)] = (digest, size)
        for member in source.infolist():
            name = _renamed(member.filename, old_info, new_info)
            if name not in changed and name != record:
                _copy_member(source, member, target, name)
        for name, data in changed.items():
            rows[name] = (record_hash(data), str(len(data)))
            _add_member(target, name, data)
        rows[record] = ("", "")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows((name, *row) for name, row in rows.items())
        _add_member(target, record, text.getvalue().encode())


def read_dist_info(wheel: Path, name: str) -> str:
    """The text of a file in the wheel's ``.dist-info`` folder."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{dist_info_of(archive)}/{name}").decode()


def dist_info_of(archive: zipfile.ZipFile) -> str:
    """The name of torch's ``.dist-info`` folder."""
    names = {name.split("/")[0] for name in archive.namelist()}
    return next(name for name in names if re.fullmatch(r"torch-[^/]*\.dist-info", name))


def read_record(text: bytes) -> list[list[str]]:
    """The rows of a RECORD: name, hash, size."""
    return list(csv.reader(io.StringIO(text.decode())))


def _renamed(name: str, old_info: str, new_info: str) -> str:
    if name.startswith(f"{old_info}/"):
        return new_info + name.removeprefix(old_info)
    return name


def _add_member(target: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _ENTRY_TIME)
    mode = 0o755 if ".so" in Path(name).suffixes else 0o644
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    target.writestr(info, data)


def _copy_member(
    source: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    target: zipfile.ZipFile,
    name: str,
) -> None:
    """Copy one member without recompressing. ``zipfile`` has no call for that;
    this uses what its own ``writestr`` does, less the compression."""
    stream = source.fp
    stream.seek(member.header_offset)
    header = stream.read(zipfile.sizeFileHeader)
    name_length = int.from_bytes(header[26:28], "little")
    extra_length = int.from_bytes(header[28:30], "little")
    stream.seek(name_length + extra_length, io.SEEK_CUR)

    info = zipfile.ZipInfo(name, member.date_time)
    info.compress_type = member.compress_type
    info.external_attr = member.external_attr
    info.create_system = member.create_system
    info.CRC = member.CRC
    info.file_size = member.file_size
    info.compress_size = member.compress_size
    info.header_offset = target.start_dir
    target.fp.seek(target.start_dir)
    target.fp.write(info.FileHeader())
    shutil.copyfileobj(_Limited(stream, member.compress_size), target.fp, 1 << 20)
    target.filelist.append(info)
    target.NameToInfo[name] = info
    target.start_dir = target.fp.tell()
    target._didModify = True


class _Limited:
    """The next ``size`` bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data
