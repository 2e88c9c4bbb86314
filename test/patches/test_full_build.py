"""The full build, as far as that can be said without compiling PyTorch."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from remat_build import distribution, sources
from remat_build.components import Interpreter
from remat_build.console import BuildError
from remat_build.distribution import is_stripped
from remat_build.full import FullBuild, _complaint
from remat_build.ninja import Ninja, _duration
from remat_build.options import add_wheel_options
from remat_build.project import Project, locked
from remat_build.tree import Tree

RULES = """\
rule run
  command = $what
build one: run
  what = touch one
build two: run one
  what = echo the compiler says no >&2; false
build all: phony two
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "build.ninja").write_text(RULES)
    return tmp_path


def full_build(project: Project, cuda: str | None = None) -> FullBuild:
    python = Interpreter("python3", "3.11", "", "")
    return FullBuild(project, python, None, cuda, 1)


def test_ninja_builds_a_target(folder: Path) -> None:
    Ninja(folder, 1, dict(os.environ)).run(["one"])
    assert (folder / "one").is_file()
    assert not (folder / "two").is_file()


def test_ninja_shows_what_failed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BuildError, match=r"the build failed.*ninja\.log"):
        Ninja(folder, 1, dict(os.environ)).run(["all"])
    said = capsys.readouterr().err
    assert "FAILED: " in said
    assert "the compiler says no" in said
    assert "step 1 of 2" in said


def test_ninja_shows_why_it_did_not_start(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BuildError):
        Ninja(folder, 1, dict(os.environ)).run(["three"])
    assert "unknown target 'three'" in capsys.readouterr().err


def test_estimates_are_readable() -> None:
    assert _duration(75) == "1 min 15 s"
    assert _duration(42 * 60) == "42 min"
    assert _duration(85 * 60) == "1 h 25 min"


def test_an_upstream_checkout_comes_with_its_submodules(tmp_path: Path) -> None:
    def git(where: Path, *words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        allow = ["-c", "protocol.file.allow=always"]
        subprocess.run(["git", *identity, *allow, *words], cwd=where, check=True)

    library, checkout = tmp_path / "pybind11", tmp_path / "checkout"
    for repository in (library, checkout):
        repository.mkdir()
        git(repository, "init", "--quiet")
    (library / "CMakeLists.txt").write_text("project(pybind11)\n")
    (checkout / "version.txt").write_text("2.6.0a0\n")
    git(library, "add", "--all")
    git(library, "commit", "--quiet", "--message=one")
    git(checkout, "submodule", "--quiet", "add", str(library), "third_party/pybind11")
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message=one")

    sources.from_tree(checkout, tmp_path / "patched")
    assert is_stripped(tmp_path / "patched")
    sources.from_tree(checkout, tmp_path / "whole", submodules=True)
    assert not is_stripped(tmp_path / "whole")


def test_too_little_disk_is_said_first(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "build_scripts").mkdir()
    settings = "[full]\ngigabytes = 1000000000\n"
    (tmp_path / "build_scripts/upstream.toml").write_text(settings)
    with pytest.raises(BuildError, match=r"needs 1000000000 GB; .* has \d+ free"):
        full_build(project).configure()


def test_a_new_tree_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Code that upstream's build generates among the sources would be missing beside
    # an old build folder. What can be used again is in ccache.
    monkeypatch.setattr(Tree, "git", lambda self, *words: "")
    monkeypatch.setattr(distribution, "is_stripped", lambda tree: False)
    project = Project(tmp_path)
    (tmp_path / "LICENSE").touch()
    build = full_build(project)
    build.folder.mkdir(parents=True)
    new = Tree(tmp_path / "new")
    new.path.mkdir()
    build._finish(new)
    assert build.folder.is_dir()
    assert not (new.path / "build").exists()


def test_the_wheel_has_the_headers_that_its_headers_include(tmp_path: Path) -> None:
    prefixes, pybind11 = [tmp_path / "one", tmp_path / "two"], tmp_path / "headers"
    for prefix, name in zip(prefixes, ("cpuinfo.h", "sleef.h"), strict=True):
        (prefix / "include").mkdir(parents=True)
        (prefix / "include" / name).write_text(f"// {name}\n")
    (pybind11 / "pybind11/detail").mkdir(parents=True)
    (pybind11 / "pybind11/detail/common.h").touch()
    include = tmp_path / "torch/include"
    for _ in range(2):
        distribution.add_headers(Project.here(), prefixes, pybind11, include)
    assert (include / "sleef.h").read_text() == "// sleef.h\n"
    assert (include / "cpuinfo.h").is_file()
    assert (include / "pybind11/detail/common.h").is_file()


def test_what_is_gone_leaves_the_wheel(tmp_path: Path) -> None:
    build = full_build(Project(tmp_path))
    stale = [
        build.tree / "dist/old.whl",
        build.tree / "torch/include/old.h",
        build.folder / "lib.linux-x86_64-cpython-311/torch/old.py",
    ]
    kept = [build.folder / "lib/libtorch_cpu.so", build.tree / "torch/lib/libshm.so"]
    for file in stale + kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    build._forget_written(build.tree / "dist")
    assert [file.exists() for file in stale + kept] == [False] * 3 + [True] * 2


def test_a_build_folder_knows_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "is_stripped", lambda tree: False)
    monkeypatch.setattr(FullBuild, "_check_disk", lambda self: None)
    monkeypatch.setattr(FullBuild, "_prepare", lambda self: None)
    (tmp_path / "build_scripts").mkdir()
    upstream = Project.here().root / "build_scripts/upstream.toml"
    (tmp_path / "build_scripts/upstream.toml").write_text(upstream.read_text())
    configured: list[Path] = []

    def configure(self: FullBuild, *words: str, log: Path) -> None:
        self.folder.mkdir(parents=True)
        log.touch()
        configured.append(log)

    monkeypatch.setattr(FullBuild, "_setup_py", configure)
    monkeypatch.setenv("USE_MKLDNN", "0")
    assert full_build(Project(tmp_path)).configured == {}
    full_build(Project(tmp_path)).configure()
    full_build(Project(tmp_path)).configure()
    assert len(configured) == 1
    assert full_build(Project(tmp_path)).configured["USE_MKLDNN"] == "0"
    monkeypatch.setenv("USE_MKLDNN", "1")
    full_build(Project(tmp_path)).configure()
    assert len(configured) == 2


def test_cuda_needs_its_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(BuildError, match="no nvcc in PATH; or set CUDA_HOME"):
        _ = full_build(Project.here(), "9.0").version


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA 12.4, as far as it is asked for its version."""
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))


@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize("text", ["hopper", "90", "8.0,9.0", "9.0;", ""])
def test_an_unknown_architecture_is_said_first(text: str) -> None:
    with pytest.raises(BuildError, match=r"is not an architecture; .*8\.0;9\.0\+PTX"):
        full_build(Project.here(), text).configure()


@pytest.mark.usefixtures("toolkit")
def test_architectures_are_accepted_as_upstream_does() -> None:
    for text in ("9.0", "8.0;9.0+PTX", "8.0 9.0a", "12.0"):
        full_build(Project.here(), text)._check_cuda()


@pytest.mark.usefixtures("toolkit")
def test_options_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "is_stripped", lambda tree: False)
    monkeypatch.setenv("USE_CUDA", "1")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "5.0")
    monkeypatch.setenv("USE_NUMA", "0")
    plain, cuda = full_build(Project.here()), full_build(Project.here(), "9.0")
    assert plain._settings["USE_CUDA"] == "0"
    assert cuda._settings["USE_CUDA"] == "1"
    assert cuda._settings["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert plain._settings["USE_NUMA"] == "0"


@pytest.mark.parametrize("text", ["0", "-1", "two"])
def test_jobs_are_counted(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_wheel_options(parser, Project.here())
    with pytest.raises(argparse.ArgumentError, match="--jobs"):
        parser.parse_args(["--jobs", text])


def test_a_wait_for_another_run_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock"
    with locked(lock):
        waiting = threading.Thread(target=lambda: locked(lock).__enter__(), daemon=True)
        waiting.start()
        deadline = time.monotonic() + 10
        said = ""
        while not said and time.monotonic() < deadline:
            said = capsys.readouterr().err
            time.sleep(0.01)
    waiting.join()
    assert said == f"wait for another run, which holds {lock}\n"


@pytest.mark.usefixtures("toolkit")
def test_the_flavour_is_in_the_version() -> None:
    version = Project.here().version
    assert full_build(Project.here(), "9.0").version == f"{version}.cu124"
    assert full_build(Project.here()).version == f"{version}.cpu"


def test_each_library_can_be_had_and_is_pinned() -> None:
    for recipe in Project.here().upstream["full"]["libraries"]:
        for source in recipe["sources"]:
            for pinned in (source, {**source, **source.get("packaging", {})}):
                assert re.fullmatch(r"[0-9a-f]{64}", pinned["sha256"])
                assert pinned["version"].rpartition("-")[0] in pinned["archive"]


def test_a_log_is_reduced_to_its_first_error() -> None:
    log = "-- flags: -Wno-error=x\n-- fine\nCMake Error at a.cmake:1\n  Cannot find B\n"
    assert (
        _complaint(log) == "-- flags: -Wno-error=x\n" + log.partition("\n")[2].rstrip()
    )
    assert _complaint("one\ntwo\nlast words") == "one\ntwo\nlast words"
