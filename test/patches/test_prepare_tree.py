"""prepare_tree.py: what it makes, and what it says when it cannot."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Toy


def test_makes_one_commit_per_patch_on_top_of_the_base(toy: Toy) -> None:
    assert toy.prepare().returncode == 0
    log = toy.git("log", "--format=%s%d", "--reverse")
    assert log.splitlines() == [
        "upstream-base (tag: upstream-base)",
        "c10: tell remat (HEAD -> remat)",
    ]
    assert "remat();" in (toy.tree / "c10/alloc.cpp").read_text()
    assert toy.git("status", "--porcelain") == ""


def test_keeps_tracked_files_that_upstream_ignores(toy: Toy) -> None:
    toy.prepare()
    assert "torch/kept.log" in toy.git("ls-files")


def test_the_three_sources_give_the_same_tree(toy: Toy) -> None:
    toy.prepare()
    expected = toy.git("rev-parse", "HEAD^{tree}")
    commands = [
        ["init", "-q"],
        ["add", "-Af"],
        ["commit", "-qm", "x"],
        ["tag", "v2.6.0"],
    ]
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for words in commands:
        subprocess.run(["git", *identity, *words], cwd=toy.source, check=True)
    for source in (["--git-tag"], ["--source", toy.source], ["--discard"]):
        assert toy.prepare(*source).returncode == 0
        assert toy.git("rev-parse", "HEAD^{tree}") == expected


def test_leaves_the_users_tree_alone(toy: Toy) -> None:
    toy.prepare()
    assert not (toy.source / ".git").exists()
    assert "remat" not in (toy.source / "c10/alloc.cpp").read_text()


def test_lays_overlays_and_follows_their_edits(toy: Toy) -> None:
    toy.prepare()
    laid = toy.tree / "c10/remat"
    assert (laid / "Hook.h").read_text() == "// a hook\n"
    unchanged = (laid / "Hook.h").stat().st_mtime_ns
    toy.write("ours/graph/Node.h", "// a node\n")
    toy.prepare()
    assert (laid / "graph/Node.h").exists()
    assert (laid / "Hook.h").stat().st_mtime_ns == unchanged
    (toy.root / "ours/graph/Node.h").unlink()
    toy.prepare()
    assert not (laid / "graph/Node.h").exists()


def test_does_nothing_when_nothing_changed(toy: Toy) -> None:
    toy.prepare()
    before = (toy.tree / "c10/alloc.cpp").stat().st_ino
    assert toy.prepare().returncode == 0
    assert (toy.tree / "c10/alloc.cpp").stat().st_ino == before


def test_rebuilds_when_a_patch_changed(toy: Toy) -> None:
    toy.prepare()
    name = "patches/c10/tell-remat.patch"
    toy.write(name, toy.read(name).replace("+remat();", "+remat(2);"))
    assert toy.prepare().returncode == 0
    assert "remat(2);" in (toy.tree / "c10/alloc.cpp").read_text()


def test_rebuilds_when_the_users_tree_changed(toy: Toy) -> None:
    toy.prepare()
    (toy.source / "torch/new.py").write_text("pass\n")
    assert toy.prepare().returncode == 0
    assert (toy.tree / "torch/new.py").exists()


def test_dates_files_by_when_their_content_changed(toy: Toy) -> None:
    toy.prepare()
    kept = (toy.tree / "version.txt").stat().st_mtime_ns
    laid = (toy.tree / "c10/remat/Hook.h").stat().st_mtime_ns
    patched = (toy.tree / "c10/alloc.cpp").stat().st_mtime_ns
    toy.write("patches/series", "")
    toy.write("patches/touched.lock", "")
    (toy.root / "patches/c10/tell-remat.patch").unlink()
    assert toy.prepare().returncode == 0
    assert (toy.tree / "c10/alloc.cpp").stat().st_mtime_ns > patched
    assert (toy.tree / "version.txt").stat().st_mtime_ns == kept
    assert (toy.tree / "c10/remat/Hook.h").stat().st_mtime_ns == laid


@pytest.mark.parametrize("work", ["edit", "commit"])
def test_keeps_work_that_is_not_written_back(toy: Toy, work: str) -> None:
    toy.prepare()
    (toy.tree / "c10/alloc.cpp").write_text("remat edit\n")
    if work == "commit":
        toy.git("commit", "-qam", "c10: more remat")
    assert "refresh_patches.py" in toy.says(toy.prepare())
    assert (toy.tree / "c10/alloc.cpp").read_text() == "remat edit\n"
    assert toy.prepare("--source", toy.source, "--discard").returncode == 0
    assert "int one;" in (toy.tree / "c10/alloc.cpp").read_text()


def test_wrong_tree(toy: Toy) -> None:
    (toy.source / "version.txt").unlink()
    assert "not a PyTorch source tree" in toy.says(toy.prepare())
    assert toy.leftovers() == []


@pytest.mark.parametrize("version", ["2.7.0", "2.6.01"])
def test_wrong_version(toy: Toy, version: str) -> None:
    (toy.source / "version.txt").write_text(version + "\n")
    said = toy.says(toy.prepare())
    assert f"PyTorch {version}" in said
    assert "2.6.0" in said
    assert toy.leftovers() == []


def test_source_that_does_not_exist(toy: Toy) -> None:
    assert "no such folder" in toy.says(toy.prepare("--source", toy.root / "none"))


def test_file_that_differs_from_the_pinned_one(toy: Toy) -> None:
    path = toy.source / "c10/alloc.cpp"
    path.write_text(path.read_text() + "int seven;\n")
    assert "c10/alloc.cpp differs" in toy.says(toy.prepare())
    assert toy.leftovers() == []


def test_file_that_is_missing(toy: Toy) -> None:
    (toy.source / "c10/alloc.cpp").unlink()
    assert "c10/alloc.cpp is missing" in toy.says(toy.prepare())


def test_archive_with_another_hash(toy: Toy) -> None:
    with open(toy.root / "cache/source/toy.orig.tar.xz", "ab") as archive:
        archive.write(b"x")
    said = toy.says(toy.prepare("--discard"))
    assert "toy.orig.tar.xz has hash" in said
    assert toy.leftovers() == []


def test_patch_that_does_not_apply_names_patch_file_and_hunk(toy: Toy) -> None:
    name = "patches/c10/tell-remat.patch"
    toy.write(name, toy.read(name).replace(" int three;", " int 3;"))
    said = toy.says(toy.prepare())
    assert "c10/tell-remat.patch does not apply: c10/alloc.cpp, hunk 1 (line 1)" in said
    assert toy.leftovers() == []


def test_three_way_merges_into_a_moved_upstream(toy: Toy) -> None:
    toy.prepare()
    path = toy.source / "c10/alloc.cpp"
    path.write_text("int zero;\n" * 5 + path.read_text())
    assert toy.prepare("--source", toy.source, "--3way").returncode == 0
    assert "int two;\nremat();\n" in (toy.tree / "c10/alloc.cpp").read_text()
    assert toy.refresh().returncode == 0
    assert "@@ -5,6 +5,7 @@" in toy.read("patches/c10/tell-remat.patch")
    shutil.rmtree(toy.tree)
    assert toy.prepare().returncode == 0


def test_destination_that_is_not_a_prepared_tree(toy: Toy) -> None:
    toy.tree.mkdir(parents=True)
    (toy.tree / "precious").write_text("")
    assert "not a prepared tree" in toy.says(toy.prepare())
    assert (toy.tree / "precious").exists()


def test_interrupted_run_leaves_nothing_that_a_later_one_trusts(toy: Toy) -> None:
    half = toy.tree.parent / ".tree.abc123"
    half.mkdir(parents=True)
    (half / "c10").mkdir()
    assert toy.prepare().returncode == 0
    assert toy.leftovers() == ["tree"]


def test_no_network_says_what_failed(toy: Toy) -> None:
    (toy.root / "cache/source/toy.orig.tar.xz").unlink()
    settings = "build_scripts/upstream.toml"
    toy.write(settings, toy.read(settings).replace("v2.6.0", "v0"))
    said = toy.says(toy.prepare("--git-tag"))
    assert "git clone" in said
    assert toy.leftovers() == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (("patches/series", "c10/none.patch\n"), "names c10/none.patch, which"),
        (("patches/series", "c10/tell-remat.patch\n" * 2), "twice"),
        (("patches/series", ""), "c10/tell-remat.patch is not in patches/series"),
        (("patches/touched.lock", "garbage\n"), "damaged line 'garbage'"),
        (("patches/touched.lock", ""), "has no hash of c10/alloc.cpp"),
        (("patches/overlay.toml", "[overlay\n"), "overlay.toml"),
        (("patches/c10/tell-remat.patch", "hello\n"), "holds no diff"),
    ],
)
def test_damaged_patch_set(toy: Toy, damage: tuple[str, str], says: str) -> None:
    toy.write(*damage)
    assert says in toy.says(toy.prepare())
    assert toy.leftovers() == []
