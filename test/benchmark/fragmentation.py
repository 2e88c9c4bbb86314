"""What becomes of a GPU's memory within a budget, with and without our placement.

In timing mode, so that a run repeats exactly. Each point is a process of its own that
has the budget from its first step on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import models

REAL_MODELS = ("gpt2", "bert", "resnet", "densenet", "unet")
# How memory is placed and freed -> environment of the process.
PLACEMENTS = {
    "ours": {},
    "stock": {"PYTORCH_REMAT_WINDOWS": "0"},
    "expandable": {
        "PYTORCH_REMAT_WINDOWS": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    },
}
WARM_UP, MEASURED = 5, 2  # steps

app = typer.Typer(add_completion=False, help=__doc__)


@dataclass(frozen=True)
class Point:
    """One training; all but ``step_ms`` and the shares are per step."""

    step_ms: float
    peak_bytes: int  # reserved
    fragmentation: float = 0.0  # see docs/stats.md
    evictions: float = 0.0
    fragmentation_evictions: float = 0.0
    moves: float = 0.0
    replays: float = 0.0
    recompute_ms: float = 0.0
    driver_calls: float = 0.0  # that reserve memory or give it back


def train(model: str, budget: int | None, policy: str) -> Point:
    """Train in this process; ``budget`` in bytes, None for remat off."""
    remat = torch.cuda.remat
    if budget is not None:
        remat.enable(budget, device="cuda", policy=policy)
    training = models.Training(models.build(model, models.REAL, "cuda"), "cuda")
    for _ in range(WARM_UP):
        training.step()
    if budget is not None:
        remat.reset_stats("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(MEASURED):
        training.step()
    end.record()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    calls = sum(
        after[name] - before[name] for name in ("num_device_alloc", "num_device_free")
    )
    point = Point(
        step_ms=start.elapsed_time(end) / MEASURED,
        peak_bytes=torch.cuda.max_memory_reserved(),
        driver_calls=calls / MEASURED,
    )
    if budget is None:
        return point
    stats = remat.stats("cuda")
    counted = ("evictions", "fragmentation_evictions", "moves", "replays")
    return replace(
        point,
        fragmentation=stats.fragmentation,
        recompute_ms=stats.recompute_ns / 1e6 / MEASURED,
        **{name: getattr(stats, name) / MEASURED for name in counted},
    )


@app.command(hidden=True)
def worker(model: str, policy: str, budget: str) -> None:
    """Print one point as JSON, or null where it does not fit."""
    try:
        point = train(model, int(budget) if budget != "none" else None, policy)
    except torch.OutOfMemoryError:
        print("null")
    else:
        print(json.dumps(asdict(point)))


def run(model: str, policy: str, budget: int | None, placement: str) -> Point | None:
    """Train in a process of its own; None if it runs out of memory."""
    done = subprocess.run(
        [sys.executable, __file__, "worker", model, policy, str(budget).lower()],
        env={**os.environ, **PLACEMENTS[placement]},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    point = json.loads(done.stdout.splitlines()[-1])
    return None if point is None else Point(**point)


def _rows(
    model: str, share: float, plain: Point, points: dict[str, Point | None]
) -> Iterator[list[str]]:
    for placement, point in points.items():
        name = [model, f"{share:.0%}", placement]
        if point is None:
            yield [*name, "out of memory"]
            continue
        yield [
            *name,
            f"{point.step_ms / plain.step_ms:.3f}",
            f"{point.fragmentation:.1%}",
            f"{point.evictions:.0f}",
            f"{point.fragmentation_evictions:.0f}",
            f"{point.moves:.0f}",
            f"{point.replays:.0f}",
            f"{point.driver_calls:.0f}",
        ]


@app.command()
def measure(
    model: Annotated[list[str] | None, typer.Option()] = None,
    share: Annotated[list[float] | None, typer.Option(help="of the plain peak")] = None,
    placement: Annotated[list[str] | None, typer.Option()] = None,
    policy: Annotated[str, typer.Option()] = "dtr",
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure, and print a table; the JSON file gets all figures."""
    if os.environ.get("EMULATED_CUDA_TIMING") != "1":
        raise typer.BadParameter("needs the emulated device in timing mode")
    for chosen in placement or ():
        if chosen not in PLACEMENTS:
            raise typer.BadParameter(f"{chosen!r} is none of {tuple(PLACEMENTS)}")
    table = Table(
        "model",
        "budget",
        "placement",
        "step / plain",
        "fragmentation",
        "evictions",
        "for want of neighbors",
        "moves",
        "replays",
        "calls of the driver",
    )
    results = []
    console = Console(stderr=True)
    chosen_models = model or REAL_MODELS
    for name in track(chosen_models, console=console, description="models"):
        plain = run(name, policy, None, "ours")
        if plain is None:
            raise typer.BadParameter(f"{name} does not fit without a budget")
        for part in share or (0.7, 0.5, 0.4):
            budget = int(plain.peak_bytes * part)
            points = {
                chosen: run(name, policy, budget, chosen)
                for chosen in placement or PLACEMENTS
            }
            for row in _rows(name, part, plain, points):
                table.add_row(*row)
            results.append(
                {
                    "model": name,
                    "ratio": part,
                    "budget_bytes": budget,
                    "policy": policy,
                    "plain": asdict(plain),
                    **{key: point and asdict(point) for key, point in points.items()},
                }
            )
    Console(width=160).print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app()
