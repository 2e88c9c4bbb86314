"""Results on disk: written after each group of runs, so that a run can be resumed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch.cuda.remat._build_info import source_hash

from .methods import Method


def environment(device: str, gpu: str | None) -> dict[str, Any]:
    """Return what the figures depend on, without what would name the machine."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "threads": 1,
    }
    if device == "cpu":
        found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    if gpu:
        found["gpu"] = gpu
        found["allocator"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default")
    return found


def source() -> str:
    """Return what is measured: the commit, if known, and a hash of the sources."""
    here = Path(__file__).parent
    command = ["git", "-C", here, "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return source_hash
    return f"{done.stdout.strip()} {source_hash}".strip()


class Store:
    """The JSON file of one device: points by model and method, and scenarios."""

    def __init__(self, file: Path, environment: dict[str, Any]) -> None:
        """Read ``file``, if there; ValueError if it is of another environment."""
        self._file = file
        self._source = source()
        self.data: dict[str, Any] = {
            "environment": environment,
            "models": {},
            "scenarios": {},
        }
        if file.exists():
            self.data = json.loads(file.read_text(encoding="utf-8"))
            there = self.data["environment"]
            if there != environment:
                raise ValueError(f"{file} was measured with {there}, not {environment}")

    def plain(self, model: str) -> dict[str, Any] | None:
        return self.data["models"].get(model, {}).get("plain")

    def set_plain(self, model: str, size: str, profile: dict[str, Any]) -> None:
        self.data["models"][model] = {"size": size, "plain": profile, "points": []}
        self.save()

    def points(self, model: str) -> list[dict[str, Any]]:
        return self.data["models"].get(model, {}).get("points", [])

    def missing(self, model: str, methods: list[Method]) -> list[Method]:
        """Return those of ``methods`` that have no point yet."""
        there = {point["method"] for point in self.points(model)}
        return [method for method in methods if str(method) not in there]

    def forget(self, model: str, methods: list[Method]) -> None:
        """Let ``methods`` be measured again."""
        names = {str(method) for method in methods}
        points = self.points(model)
        points[:] = [point for point in points if point["method"] not in names]

    def add(self, model: str, points: list[dict[str, Any]]) -> None:
        """Keep ``points``, each with what it was measured with."""
        self.points(model).extend({**point, "source": self._source} for point in points)
        self.points(model).sort(key=lambda point: point["method"])
        self.save()

    def scenario(self, name: str) -> dict[str, Any] | None:
        return self.data["scenarios"].get(name)

    def set_scenario(self, name: str, about: dict[str, Any]) -> None:
        self.data["scenarios"][name] = {**about, "points": []}
        self.save()

    def add_to_scenario(self, name: str, points: list[dict[str, Any]]) -> None:
        """Keep ``points``, each with what it was measured with."""
        there = self.data["scenarios"][name]["points"]
        there.extend({**point, "source": self._source} for point in points)
        self.save()

    def save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.data, indent=1) + "\n"
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.rename(self._file)
