"""What ``planned`` would recompute without addresses, and what anything must.

    bash test/benchmark/simulated.sh [GPU] [--model vit]...

Records a step of each model in timing mode, at real size, and simulates it within
shares of what it needs beyond what is held before it: the budgets of ``peers.sh``. Both
figures are recompute over the time of the plain step, in percent. The bound is that of
``bound.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bound import Program
from peers.methods import Method
from peers.training import PeerTraining

MODELS = ("vit", "bert", "resnet", "densenet", "gpt2", "unet", "inception")
SHARES = (0.7, 0.5, 0.4, 0.3, 0.25)
WARM_UP = 5  # steps, until costs are measured


def record(model: str, trace: Path) -> tuple[float, float]:
    """Record a step; return its time in ns and the bytes that it needs."""
    remat = torch.cuda.remat
    plain = PeerTraining(model, "real", "cuda", Method.parse("plain"))
    for _ in range(WARM_UP):
        reading = plain.step().reading
    del plain
    remat.enable(device="cuda")
    training = PeerTraining(model, "real", "cuda", Method.parse("plain"))
    for _ in range(WARM_UP):
        training.step()
    with remat.record_trace(trace):
        training.step()
    remat.disable()
    return reading.wall_s * 1e9, float(reading.peak_bytes)


def simulate(trace: Path, budget: float) -> float | None:
    """Return the overhead of ``planned``; None where it does not fit."""
    command = [sys.executable, "-m", "torch.cuda.remat", "simulate", str(trace)]
    command += ["--policy", "planned", "--budget", str(int(budget)), "--json"]
    (point,) = json.loads(subprocess.run(command, stdout=-1, check=True).stdout)
    return point["overhead"] if point["feasible"] else None


def percent(recompute_ns: float | None, step_ns: float) -> str:
    """Return a cell of the table."""
    return "-" if recompute_ns is None else f"{100 * recompute_ns / step_ns:.1f}"


def main(
    model: Annotated[list[str] | None, typer.Option(help="default: seven")] = None,
) -> None:
    """Print the table."""
    table = Table("model", "budget", "simulated, %", "bound, %")
    with tempfile.TemporaryDirectory() as folder:
        for name in track(model or MODELS, "models", console=Console(stderr=True)):
            trace = Path(folder, f"{name}.trace")
            step_ns, needed = record(name, trace)
            with trace.open(encoding="utf-8") as lines:
                next(lines)  # the format
                program = Program([json.loads(line) for line in lines])
            for share in SHARES:
                budget = program.peak_bytes - (1 - share) * needed
                overhead = simulate(trace, budget)
                simulated = overhead and (overhead - 1) * program.cost_ns
                bound = program.least_recompute_ns(budget)
                table.add_row(
                    name,
                    f"{share:.0%}",
                    percent(simulated, step_ns),
                    percent(bound, step_ns),
                )
    Console(width=80).print(table)


if __name__ == "__main__":
    typer.run(main)
