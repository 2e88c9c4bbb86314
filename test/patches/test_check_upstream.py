"""check_upstream.py: the series on a tree that has moved on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Toy


def check(toy: Toy) -> tuple[int, str]:
    done = toy.run("build_scripts/check_upstream.py", toy.source)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_same_files(toy: Toy) -> None:
    status, said = check(toy)
    assert status == 0
    assert "c10/tell-remat.patch: applies" in said
    assert "PyTorch 2.6.0a0: 1 of 1 patches apply" in said


def test_other_changes_do_not_matter(toy: Toy) -> None:
    (toy.source / "version.txt").write_text("2.7.0\n")
    file = toy.source / "c10/alloc.cpp"
    file.write_text(file.read_text() + "int seven;\n" * 20)
    status, said = check(toy)
    assert status == 0
    assert "PyTorch 2.7.0: 1 of 1 patches apply" in said


def test_says_which_hunk_fails_and_shows_it(toy: Toy) -> None:
    file = toy.source / "c10/alloc.cpp"
    before = file.read_text()
    file.write_text(before.replace("int three", "long three"))
    status, said = check(toy)
    assert status == 1
    assert "c10/tell-remat.patch: does not apply" in said
    assert "c10/alloc.cpp, line 1, hunk 1 fails:" in said
    assert "     int three;" in said
    assert "0 of 1 patches apply" in said
    assert file.read_text() == before.replace("int three", "long three")
    assert not list(toy.source.rglob("*.rej"))


def test_missing_file(toy: Toy) -> None:
    (toy.source / "c10/alloc.cpp").unlink()
    status, said = check(toy)
    assert status == 1
    assert "c10/alloc.cpp does not exist" in said


def test_a_folder_in_the_way_of_an_overlay(toy: Toy) -> None:
    (toy.source / "c10/remat").mkdir()
    status, said = check(toy)
    assert status == 1
    assert "c10/remat is a folder of its own" in said


def test_not_a_source_tree(toy: Toy) -> None:
    shutil.rmtree(toy.source)
    done = toy.run("build_scripts/check_upstream.py", toy.source)
    assert "not a PyTorch source tree" in toy.says(done)
