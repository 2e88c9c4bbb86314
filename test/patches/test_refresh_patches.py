"""refresh_patches.py: the inverse of prepare_tree.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Toy


def test_untouched_tree_changes_nothing(toy: Toy) -> None:
    before = toy.patches()
    toy.prepare()
    assert toy.refresh().returncode == 0
    assert toy.patches() == before


def test_another_machines_git_settings_change_nothing(toy: Toy) -> None:
    before = toy.patches()
    toy.write(
        ".gitconfig",
        "[diff]\nnoprefix = true\ncontext = 9\nmnemonicPrefix = true\n"
        "[core]\nabbrev = 4\nautocrlf = true\n",
    )
    toy.prepare()
    toy.refresh()
    assert toy.patches() == before


def test_writes_a_new_commit_as_a_patch(toy: Toy) -> None:
    toy.prepare()
    toy.edit("c10/CMakeLists.txt", "\n", "\ninclude(remat.cmake)\n")
    toy.commit("torch: include remat")
    assert toy.refresh().returncode == 0
    assert toy.read("patches/series") == (
        "c10/tell-remat.patch\n\ntorch/include-remat.patch\n"
    )
    assert "c10/CMakeLists.txt" in toy.read("patches/touched.lock")
    assert toy.check().returncode == 0
    assert toy.prepare().returncode == 0


def test_removes_the_patch_of_a_dropped_commit(toy: Toy) -> None:
    toy.prepare()
    toy.git("reset", "--quiet", "--hard", "upstream-base")
    assert toy.refresh().returncode == 0
    assert toy.read("patches/series") == ""
    assert toy.read("patches/touched.lock") == ""
    assert "c10/tell-remat.patch" not in toy.patches()


def test_refuses_uncommitted_edits(toy: Toy) -> None:
    toy.prepare()
    toy.edit("c10/alloc.cpp", "int one;", "int remat;")
    assert "uncommitted edits" in toy.says(toy.refresh())


def test_refuses_a_commit_to_squash(toy: Toy) -> None:
    toy.prepare()
    toy.edit("c10/alloc.cpp", "int one;", "int remat;")
    toy.git("commit", "--quiet", "--all", "--fixup=HEAD")
    assert "autosquash" in toy.says(toy.refresh())


def test_refuses_a_new_file_and_leaves_the_patches_alone(toy: Toy) -> None:
    before = toy.patches()
    toy.prepare()
    (toy.tree / "c10/new.cpp").write_text("int remat;\n")
    toy.git("add", "c10/new.cpp")
    toy.commit("c10: add remat file")
    assert "belong in an overlay" in toy.says(toy.refresh())
    assert toy.patches() == before


def test_refuses_a_subject_without_an_area(toy: Toy) -> None:
    before = toy.patches()
    toy.prepare()
    toy.edit("c10/alloc.cpp", "int one;", "int remat;")
    toy.commit("fix things")
    assert "must be `area: what`" in toy.says(toy.refresh())
    assert toy.patches() == before


def test_refuses_a_tree_that_is_not_prepared(toy: Toy) -> None:
    toy.tree.mkdir(parents=True)
    assert "not a prepared tree" in toy.says(toy.refresh())
