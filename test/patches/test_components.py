"""The Python that a wheel is for, and wheels in the cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remat_build.components import Interpreter, fetch_wheel
from remat_build.console import BuildError

THIS = "{}.{}".format(*sys.version_info)


def test_asks_the_interpreter() -> None:
    found = Interpreter.ask(sys.executable, [THIS])
    assert found.version == THIS
    assert found.tag == "cp" + THIS.replace(".", "")
    assert found.suffix.endswith(".so")


@pytest.mark.parametrize(
    ("command", "supported", "says"),
    [
        ("/nonexistent/python", [THIS], "cannot be run"),
        ("/bin/false", [THIS], "cannot be run"),
        (sys.executable, ["2.7"], f"Python {THIS}: stock wheels are for 2.7"),
    ],
)
def test_python_that_will_not_do(command: str, supported: list[str], says: str) -> None:
    with pytest.raises(BuildError, match=says):
        Interpreter.ask(command, supported)


def test_takes_the_wheel_of_the_right_python_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMAT_CACHE", str(tmp_path))
    folder = tmp_path / "wheels"
    folder.mkdir()
    for tag in ("cp39", "cp312"):
        (folder / f"torch-2.6.0-{tag}-{tag}-manylinux1_x86_64.whl").touch()
    (folder / "nvidia_cuda_nvcc_cu12-12.4.131-py3-none-any.whl").touch()
    python = Interpreter("python3.12", "3.12", "", ".so")
    assert "-cp312-" in fetch_wheel("torch==2.6.0", python).name
    assert fetch_wheel("nvidia-cuda-nvcc-cu12==12.4.131", python).name.startswith("nv")


def test_no_network_says_where_to_put_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMAT_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    python = Interpreter.ask(sys.executable, [THIS])
    with pytest.raises(BuildError, match=r"cannot download torch==2\.6\.0.*/wheels"):
        fetch_wheel("torch==2.6.0", python)
    assert list((tmp_path / "wheels").glob("*.whl")) == []
