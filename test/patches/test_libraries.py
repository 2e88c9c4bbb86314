"""Libraries of the full build: fetched, patched, built once, and gone on with."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from remat_build.console import BuildError
from remat_build.libraries import Libraries, is_on
from remat_build.ninja import Ninja
from remat_build.project import Project, sha256

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(small NONE)
install(FILES small.h DESTINATION include)
"""
PATCH = """\
--- a/small.h
+++ b/small.h
@@ -1 +1 @@
-// broken
+// mended
"""


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives lie that need no download; the cache is in a repository."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    monkeypatch.setenv("TORCH_REMAT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache/source"
    folder.mkdir(parents=True)
    return folder


def pinned(archive: Path, **more: Any) -> dict[str, Any]:
    return {"archive": archive.name, "sha256": sha256(archive), **more}


def packed(archive: Path, files: dict[str, str]) -> Path:
    top = archive.parent / "top"
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(top, arcname="small-1")
    subprocess.run(["rm", "-r", top], check=True)
    return archive


def small(downloads: Path) -> dict[str, Any]:
    source = packed(
        downloads / "small_1.orig.tar.xz",
        {"CMakeLists.txt": CMAKE, "small.h": "// broken\n"},
    )
    debian = packed(downloads / "small_1.debian.tar.xz", {"patches/mend.patch": PATCH})
    packaging = pinned(debian, patches=["mend.patch"])
    return {
        "name": "small",
        "cmake": [],
        "sources": [pinned(source, package="small", packaging=packaging)],
    }


def of(monkeypatch: pytest.MonkeyPatch, *recipes: dict[str, Any]) -> Libraries:
    monkeypatch.setattr(Libraries, "_recipes", list(recipes))
    return Libraries(Project.here(), 1)


def test_a_library_is_patched_and_built_once(
    downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = of(monkeypatch, small(downloads))
    header = known.prefix("small") / "include/small.h"
    assert header.read_text() == "// mended\n"
    header.write_text("// as it was\n")
    known.prefix("small")
    assert header.read_text() == "// as it was\n"
    assert sorted(p.name for p in header.parents[2].iterdir()) == [
        ".small.lock",
        "small",
    ]


def test_another_recipe_is_built_anew_and_alone(
    downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small(downloads)
    other = {**recipe, "name": "other"}
    before = of(monkeypatch, recipe, other).prefixes({})
    for prefix in before:
        (prefix / "mark").touch()
    changed = {**recipe, "cmake": ["-DBUILD_SHARED_LIBS=OFF"]}
    after = of(monkeypatch, changed, other).prefixes({})
    assert after == before
    assert [(prefix / "mark").exists() for prefix in after] == [False, True]


def test_an_interrupted_build_is_gone_on_with(
    downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = of(monkeypatch, small(downloads))

    def interrupted(self: Ninja, targets: list[str]) -> None:
        raise BuildError("interrupted")

    with monkeypatch.context() as broken:
        broken.setattr(Ninja, "run", interrupted)
        with pytest.raises(BuildError, match="interrupted"):
            known.prefix("small")
    (header,) = downloads.parent.rglob("source/small.h")
    header.write_text("// gone on with\n")
    prefix = known.prefix("small")
    assert (prefix / "include/small.h").read_text() == "// gone on with\n"


def test_a_package_of_headers_needs_no_build(
    downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = downloads / "content"
    (content / "usr/include").mkdir(parents=True)
    (content / "usr/include/small.hpp").touch()
    (content / "DEBIAN").mkdir()
    (content / "DEBIAN/control").write_text(
        "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
    )
    package = downloads / "small_1_all.deb"
    build = ["dpkg-deb", "--root-owner-group", "--build", content, package]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    recipe = {"name": "small", "sources": [pinned(package, package="small")]}
    prefix = of(monkeypatch, recipe).prefix("small")
    assert (prefix / "include/small.hpp").is_file()


def test_the_next_suite_is_tried(
    downloads: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small(downloads)
    gone = {**recipe["sources"][0], "sha256": "0" * 64}
    recipe["sources"].insert(0, gone)
    assert of(monkeypatch, recipe).prefix("small").is_dir()
    assert "another suite is tried" in capsys.readouterr().err


def test_a_library_is_built_where_its_setting_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Libraries, "_prefix", lambda self, r: Path(r["name"]))
    known = Libraries(Project.here(), 1)
    with_onednn = [p.name for p in known.prefixes({"USE_MKLDNN": "ON"})]
    without = [p.name for p in known.prefixes({"USE_MKLDNN": "0"})]
    assert set(with_onednn) - set(without) == {"onednn", "ideep"}
    assert without
    settings = Project.here().upstream["full"]["distribution"]
    assert {p.name for p in known.prefixes(settings)} == set(with_onednn)


@pytest.mark.parametrize("text", ["0", "OFF", "off", "No", "FALSE", "n", ""])
def test_settings_are_off_as_upstream_has_it(text: str) -> None:
    assert not is_on(text)
    assert is_on("1")
    assert is_on("ON")
