"""Compare training within a budget with what users would pick instead."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

import models

from . import page
from .measure import GROUP, measure_model, measure_records, measure_scenario
from .methods import POLICIES, TARGETS, Method, all_methods
from .runs import Problem, Timing
from .scenarios import SCENARIOS
from .store import Store, environment

DOCS = Path(__file__).resolve().parents[3] / "docs"
MODELS = (*models.PUBLISHED, *models.NAMES)
# In timing mode all that takes time is modelled, so a run repeats exactly.
# Plans are made anew after 2, 4 and 8 repeats while costs are being measured, and the
# first is tried with its placement and without.
TIMING_MODE = Timing(warm_up=12, rounds=6, beside=False)

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)


@app.command()
def measure(
    model: Annotated[
        list[str] | None, typer.Option(help="default: all of them")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option(help="default: all, if no model is named")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option()] = None,
    target: Annotated[
        list[float] | None, typer.Option(help="shares of the plain peak")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="no others than these methods, such as checkpoint:first_3"),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="small, cpu or real; default: by device")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="timed steps of each run")
    ] = None,
    warm_up: Annotated[
        int | None, typer.Option(min=1, help="steps before those")
    ] = None,
    group: Annotated[
        int, typer.Option(min=1, help="runs beside the plain one, all in memory")
    ] = GROUP,
    compiled: Annotated[bool, typer.Option(help="torch.compile, too")] = True,
    again: Annotated[
        bool, typer.Option(help="measure again what is there already")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="default: in docs/benchmarks")
    ] = None,
) -> None:
    """Measure what has not been measured yet; results are kept as they come."""
    gpu = os.environ.get("EMULATED_CUDA_GPU")
    device = "cuda" if gpu else "cpu"
    if gpu and os.environ.get("EMULATED_CUDA_TIMING") != "1":
        raise typer.BadParameter("times on the emulated device need --timing")
    unknown = {*(model or ())} - {*MODELS} | {*(scenario or ())} - {*SCENARIOS}
    if unknown:
        raise typer.BadParameter(
            f"unknown {sorted(unknown)}; there are {MODELS}, and {tuple(SCENARIOS)}"
        )
    file = json_file or DOCS / "benchmarks" / (f"{gpu}.json" if gpu else "cpu.json")
    store = Store(file, environment(device, gpu))
    policies = tuple(policy or POLICIES)

    def methods(labels: list[str]) -> list[Method]:
        if only:
            return [Method.parse(text) for text in only]
        targets = tuple(target or TARGETS)
        return all_methods(labels, policies, targets, compiled=compiled and not gpu)

    names = model or ([] if scenario else list(MODELS))
    if gpu:
        names = [name for name in names if name not in models.PUBLISHED]
    scenarios = scenario or ([] if model else list(SCENARIOS))
    timing = TIMING_MODE if gpu else Timing()
    timing = dataclasses.replace(
        timing, warm_up=warm_up or timing.warm_up, rounds=rounds or timing.rounds
    )
    console = Console(stderr=True)
    columns = SpinnerColumn(), *Progress.get_default_columns(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names) + len(scenarios))

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(text)

        for name in names:
            problem = Problem(
                name,
                size or (models.REAL if gpu else models.CPU),
                device,
                patience_s=1800 if compiled else 300,
            )
            if again and store.plain(name):
                store.forget(name, methods(store.plain(name)["labels"]))
            measure_model(store, problem, methods, timing, say=say, group=group)
            if device == "cpu":
                measure_records(store, problem, say=say)
            progress.advance(task)
        for name in scenarios:
            if again:
                store.data["scenarios"].pop(name, None)
            measure_scenario(
                store,
                name,
                device,
                policies,
                compiled=compiled and not gpu,
                say=say,
                group=group,
            )
            progress.advance(task)
    console.print(f"results: {file}")


@app.command()
def quick(
    folder: Annotated[Path, typer.Argument(help="where the results go")],
) -> None:
    """Try everything once, in seconds: a tiny model, a peer, a policy, a target.

    The times mean nothing; memory and losses do.
    """
    store = Store(folder / "cpu.json", environment("cpu", None))
    names = ("checkpoint:every 1", "remat:planned@0.7")
    measure_model(
        store,
        Problem("gpt2", models.SMALL),
        lambda labels: [Method.parse(name) for name in names],
        Timing(warm_up=2, rounds=2),
        say=lambda text: None,
        attempts=1,
    )
    report(folder)


@app.command()
def report(
    folder: Annotated[Path, typer.Option(help="where the results are")] = DOCS
    / "benchmarks",
) -> None:
    """Write the page and the plots from all results that are there."""
    stores = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.json"))
    }
    if not stores:
        raise typer.BadParameter(f"there are no results in {folder}")
    written = page.write(stores, folder)
    Console(stderr=True).print(f"written: {', '.join(map(str, written))}")


if __name__ == "__main__":
    app()
