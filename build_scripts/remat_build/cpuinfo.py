"""cpuinfo for the rebuilt libc10: stock's own code, taken over as it is.

Note [Why cpuinfo is taken from the stock libc10]
Stock libc10 has cpuinfo linked in and exports it; libtorch_cpu reads the struct
``cpuinfo_isa`` from it, by the layout of the header it was compiled with, and
chooses the vector kernels by that. A cpuinfo of another version, as Debian's, has
the same symbols and another layout: torch then runs, reports no AVX and gives
other (slower) kernels, without a word. The sources of the right version are a
submodule of upstream, out of reach where only package mirrors are. So the machine
code of the stock library is used:

- ``libcpuinfo_stock.so`` is stock libc10 with every symbol hidden but cpuinfo's,
  whose functions are renamed to ``stock_cpuinfo_*``. A hidden symbol can
  neither be found from outside nor be preempted, so the rest of that copy is inert.
- The rebuilt libc10 exports each ``cpuinfo_*`` function as a jump to it, and the
  struct ``cpuinfo_isa``. That name is left alone in the copy, which reaches it by
  symbol lookup, so both use libc10's.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from elftools.elf.elffile import ELFFile

from .console import fail, run

LIBRARY = "libcpuinfo_stock.so"
_PREFIX = "stock_"
_STV_HIDDEN = 2
_ST_OTHER = 5  # offset of st_other in Elf64_Sym

_JUMPS = {"x86_64": "jmp {target}@PLT", "aarch64": "b {target}"}


def carve(stock_libc10: Path, into: Path) -> None:
    """Write the library and ``cpuinfo.S``, what libc10 has to export, to ``into``."""
    into.mkdir(parents=True, exist_ok=True)
    library = into / LIBRARY
    shutil.copyfile(stock_libc10, library)
    functions, data = _hide_all_but_cpuinfo(library)
    if not functions or set(data) != {"cpuinfo_isa"}:
        fail(f"{stock_libc10} does not export cpuinfo as expected; is it stock?")
    names = into / "names"
    names.write_text("".join(f"{name} {_PREFIX}{name}\n" for name in functions))
    run(["patchelf", "--set-soname", LIBRARY, library])
    run(["patchelf", "--remove-rpath", library])
    run(["patchelf", "--rename-dynamic-symbols", names, library])
    with open(stock_libc10, "rb") as stream:
        machine = ELFFile(stream).get_machine_arch()
    jump = _JUMPS["aarch64" if machine == "AArch64" else "x86_64"]
    (into / "cpuinfo.S").write_text(_assembly(functions, data, jump))


def _hide_all_but_cpuinfo(library: Path) -> tuple[list[str], dict[str, int]]:
    """Hide the rest, in place; return cpuinfo's functions, and data with sizes."""
    functions, data, hidden = [], {}, []
    with open(library, "rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        for index, symbol in enumerate(table.iter_symbols()):
            if symbol["st_shndx"] == "SHN_UNDEF":
                continue
            if not re.match(r"cpuinfo_", symbol.name):
                hidden.append(
                    table["sh_offset"] + index * table["sh_entsize"] + _ST_OTHER
                )
            elif symbol["st_info"]["type"] == "STT_FUNC":
                functions.append(symbol.name)
            else:
                data[symbol.name] = symbol["st_size"]
    with open(library, "r+b") as stream:
        for offset in hidden:
            stream.seek(offset)
            stream.write(bytes([_STV_HIDDEN]))
    return sorted(functions), data


def _assembly(functions: list[str], data: dict[str, int], jump: str) -> str:
    lines = ["// Written by build_scripts/remat_build/cpuinfo.py.", ".text"]
    for name in functions:
        lines += [
            f".globl {name}",
            f".type {name}, %function",
            f"{name}:",
            "  " + jump.format(target=_PREFIX + name),
            f".size {name}, .-{name}",
        ]
    lines.append(".bss")
    for name, size in data.items():
        lines += [
            ".balign 32",
            f".globl {name}",
            f".type {name}, %object",
            f"{name}: .zero {size}",
            f".size {name}, {size}",
        ]
    lines.append('.section .note.GNU-stack, "", %progbits')
    return "\n".join(lines) + "\n"
