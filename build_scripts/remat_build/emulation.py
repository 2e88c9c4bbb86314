"""The emulated CUDA device, built for an environment; see docs/emulated_cuda.md."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from .components import Interpreter, fetch_cuda
from .console import fail, run_compiler, say, step
from .project import Project, locked


@dataclass(frozen=True)
class Emulation:
    """What a command is run with so that it finds a CUDA device."""

    gpu: str
    timing: bool
    devices: int
    capacity: str | None

    def variables(
        self, project: Project, python: Interpreter, torch: Path
    ) -> dict[str, str]:
        """Build what is out of date; return the environment variables to set."""
        folder = project.build / f"emulated-{python.tag}"
        with locked(project.build / f".emulated-{python.tag}-lock"):
            _build(project, python, torch, folder)
        say(f"the CUDA device is emulated: {self._description()}")
        site = project.root / "test/emulated_cuda/site"
        # Before any of these names is looked up, so that the real ones never are.
        names = ("libcudart.so.12", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2")
        runtime = [folder / name for name in names]
        if set(str(folder)) & set(" :"):
            fail(f"{folder}: LD_PRELOAD takes no path with a space or a colon")
        variables = {
            "EMULATED_CUDA_EXECUTOR": folder / "libemulated_cuda_executor.so",
            "EMULATED_CUDA_GPU": self.gpu,
            "EMULATED_CUDA_DEVICES": self.devices,
            "EMULATED_CUDA_TIMING": int(self.timing),
            "PYTHONPATH": _before(site, "PYTHONPATH"),
            "LD_PRELOAD": _before(":".join(map(str, runtime)), "LD_PRELOAD"),
        }
        if self.capacity is not None:
            variables["EMULATED_CUDA_CAPACITY"] = self.capacity
        return {name: str(value) for name, value in variables.items()}

    def _description(self) -> str:
        parts = [f"{self.devices} x {self.gpu}"]
        if self.capacity is not None:
            parts.append(f"{self.capacity} each")
        parts.append(
            "nothing is computed, times are modelled"
            if self.timing
            else "kernels run on the CPU"
        )
        return ", ".join(parts)


def _build(project: Project, python: Interpreter, torch: Path, folder: Path) -> None:
    include = ";".join(f"{part}/include" for part in fetch_cuda(project, python))
    configure = ["cmake", "-G", "Ninja", "-S", project.root / "test/emulated_cuda"]
    configure += ["-B", folder, f"-DEMULATED_CUDA_INCLUDE={include}"]
    configure += [f"-DEMULATED_CUDA_TORCH={torch}"]
    # Only the first time takes long enough to be told.
    is_first = not (folder / "build.ninja").is_file()
    telling = step("compile the emulated CUDA device") if is_first else nullcontext()
    with telling:
        run_compiler([str(word) for word in configure])
        run_compiler(["ninja", "-C", str(folder)], progress=True)


def _before(first: object, name: str) -> str:
    rest = os.environ.get(name)
    return f"{first}:{rest}" if rest else str(first)
