"""check_patches.py: every rule of the patch-set conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Toy

NAME = "patches/c10/tell-remat.patch"


def test_a_good_set_passes(toy: Toy) -> None:
    done = toy.check()
    assert done.returncode == 0, done.stderr
    assert "1 patches, 1 upstream files, 1 changed lines" in done.stdout


@pytest.mark.parametrize("field", ["Why", "Why-a-patch", "Upstream", "Tested-by"])
def test_each_header_field_is_needed(toy: Toy, field: str) -> None:
    toy.write(NAME, toy.read(NAME).replace(f"{field}:", "Note:"))
    assert f"has no `{field}:` field" in toy.check().stderr


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Upstream: not-sent", "Upstream: maybe", "is not `not-sent`"),
        ("conftest.py", "test_none.py", "test_none.py` does not exist"),
        ("+remat();", "+hook();", "a line without `remat`"),
        ("From: Remat developers", "From: Me", "line 1 must be"),
        (
            "[PATCH] c10: tell remat",
            "[PATCH] c10: say",
            "belongs in patches/c10/say.patch",
        ),
        ("[PATCH] c10: ", "[PATCH] misc: ", "must be `area: what`"),
        ("@@ -1,", "@@ -2,", "not as refresh_patches.py writes it"),
        (" int three;", " int 3;", "does not apply: c10/alloc.cpp, hunk 1"),
    ],
)
def test_what_is_wrong_is_said(toy: Toy, old: str, new: str, says: str) -> None:
    assert old in toy.read(NAME)
    toy.write(NAME, toy.read(NAME).replace(old, new))
    done = toy.check()
    assert done.returncode == 1
    assert says in done.stderr


def test_patch_not_in_utf8(toy: Toy) -> None:
    (toy.root / NAME).write_bytes(toy.read(NAME).encode().replace(b"to have", b"\xff"))
    assert "not UTF-8" in toy.says(toy.check())


def test_too_many_lines(toy: Toy) -> None:
    toy.prepare()
    toy.edit("c10/alloc.cpp", "int six;\n", "int six;\n" + "remat();\n" * 41)
    toy.commit("c10: tell remat much")
    toy.refresh()
    assert "changes 41 lines; at most 40" in toy.check().stderr


def test_lock_of_a_file_that_no_patch_edits(toy: Toy) -> None:
    lock = toy.read("patches/touched.lock")
    toy.write("patches/touched.lock", lock + "0" * 64 + "  c10/other.cpp\n")
    assert "c10/other.cpp, which no patch edits" in toy.check().stderr


def test_overlay_over_an_upstream_folder(toy: Toy) -> None:
    toy.write("patches/overlay.toml", '[overlay]\n"ours" = "torch"\n')
    assert "torch is a folder that upstream has" in toy.check().stderr
