"""Train two models within a budget and show what it costs.

Each model first trains without a budget; then four runs, one more without and three
within 70, 50 and 35 percent of the first one's peak, are stepped in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parent
MODELS = ("gpt", "conv")
RATIOS = (0.7, 0.5, 0.35)
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Row:
    """One budgeted run against the plain one; the fields are the JSON's keys."""

    model: str
    budget_ratio: float
    budget_bytes: int
    peak_bytes: int
    plain_peak_bytes: int
    step_ratio: float
    losses_equal: bool
    params_equal: bool
    evictions: int
    replays: int

    @property
    def is_good(self) -> bool:
        """Whether the run kept its budget and computed what the plain one did."""
        return (
            self.peak_bytes <= self.budget_bytes
            and self.losses_equal
            and self.params_equal
        )


@dataclass
class Run:
    """A worker process and what it has answered so far."""

    model: str
    budget: int | None = None
    policy: str | None = None
    losses: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    timeline: list[tuple[float, int]] = field(default_factory=list)
    ending: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command = [sys.executable, str(HERE / "demo_worker.py"), self.model]
        if self.budget is not None:
            command += ["--budget", str(self.budget)]
        if self.policy is not None:
            command += ["--policy", self.policy]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
        )
        self._read()

    def step(self, *, traced: bool = False) -> None:
        """Train one step; a traced one records the timeline and is not timed."""
        reply = self._ask("traced step" if traced else "step")
        self.losses.append(str(reply["loss"]))
        if traced:
            self.timeline = reply["timeline"]
        else:
            self.seconds.append(float(reply["seconds"]))

    def finish(self) -> None:
        """Read the counters and end the process."""
        self.ending = self._ask("finish")
        self._process.stdin.close()
        self._process.wait()

    @property
    def peak_bytes(self) -> int:
        return int(self.ending["peak_bytes"])

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds[WARM_UP_STEPS:])

    def _ask(self, command: str) -> dict:
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.model}: the training process ended with "
                f"{self._process.wait()}; its message is above"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise SystemExit(
                f"{self.model} within {self.budget} bytes: {reply['error']}"
            )
        return reply


@dataclass
class Comparison:
    """All runs of one model."""

    reference: Run
    plain: Run
    budgeted: dict[float, Run]

    def rows(self) -> list[Row]:
        """One row per budget, against the plain run stepped beside it."""
        return [self._row(ratio, run) for ratio, run in self.budgeted.items()]

    def _row(self, ratio: float, run: Run) -> Row:
        return Row(
            model=run.model,
            budget_ratio=ratio,
            budget_bytes=run.budget or 0,
            peak_bytes=run.peak_bytes,
            plain_peak_bytes=self.reference.peak_bytes,
            step_ratio=round(run.median_seconds / self.plain.median_seconds, 4),
            losses_equal=run.losses == self.plain.losses == self.reference.losses,
            params_equal=run.ending["parameters"]
            == self.plain.ending["parameters"]
            == self.reference.ending["parameters"],
            evictions=int(run.ending["evictions"]),
            replays=int(run.ending["replays"]),
        )


def compare(
    model: str, ratios: Sequence[float], steps: int, policy: str | None
) -> Comparison:
    """Train ``model`` without a budget, then within each, stepped in turn."""
    total = WARM_UP_STEPS + steps + 1
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{model} without a budget", total=total)
        reference = Run(model)
        for i in range(total):
            reference.step(traced=i == total - 1)
            progress.advance(task)
        reference.finish()
        plain = Run(model)
        budgeted = {
            ratio: Run(model, int(ratio * reference.peak_bytes), policy)
            for ratio in ratios
        }
        runs = [plain, *budgeted.values()]
        task = progress.add_task(f"{model} within budgets", total=total)
        for i in range(total):
            first = i % len(runs)  # no run always follows the same other one
            for run in runs[first:] + runs[:first]:
                run.step(traced=i == total - 1)
            progress.advance(task)
        for run in runs:
            run.finish()
    return Comparison(reference, plain, budgeted)


def table(comparisons: list[Comparison]) -> Table:
    """Show every run; the resident peak is the system's own count, as a check."""
    shown = Table(title="Training within a budget of live CPU bytes")
    for heading in ("model", "budget", "budget MB", "peak MB", "resident peak MB"):
        shown.add_column(heading, justify="right")
    for heading in ("step ms", "step ratio", "losses", "parameters"):
        shown.add_column(heading, justify="right")
    for heading in ("evictions", "replays"):
        shown.add_column(heading, justify="right")

    def megabytes(number: object) -> str:
        return f"{int(number) / 1e6:.1f}"

    def equal(flag: bool) -> str:
        return "equal" if flag else "[bold red]differ"

    for comparison in comparisons:
        plain = comparison.plain
        shown.add_row(
            plain.model,
            "none",
            "",
            megabytes(plain.peak_bytes),
            megabytes(plain.ending["resident_peak_bytes"]),
            f"{plain.median_seconds * 1e3:.0f}",
            "1.00",
        )
        for row in comparison.rows():
            run = comparison.budgeted[row.budget_ratio]
            over = "" if row.peak_bytes <= row.budget_bytes else "[bold red]"
            shown.add_row(
                row.model,
                f"{row.budget_ratio:.0%}",
                megabytes(row.budget_bytes),
                over + megabytes(row.peak_bytes),
                megabytes(run.ending["resident_peak_bytes"]),
                f"{run.median_seconds * 1e3:.0f}",
                f"{row.step_ratio:.2f}",
                equal(row.losses_equal),
                equal(row.params_equal),
                str(row.evictions),
                str(row.replays),
            )
        shown.add_section()
    return shown


def draw(comparisons: list[Comparison], file: Path) -> None:
    """Draw the live bytes of one step of each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(comparisons), 1, figsize=(9, 3.6 * len(comparisons)), squeeze=False
    )
    for axis, comparison in zip(axes[:, 0], comparisons):
        runs = {"no budget": comparison.plain}
        runs.update({f"{r:.0%}": run for r, run in comparison.budgeted.items()})
        for label, run in runs.items():
            times, sizes = zip(*run.timeline)
            line = axis.plot(
                [1e3 * t for t in times], [b / 1e6 for b in sizes], lw=1, label=label
            )[0]
            if run.budget:
                axis.axhline(run.budget / 1e6, color=line.get_color(), ls=":", lw=1)
        axis.set_title(f"{comparison.plain.model}: one step; dotted: its budget")
        axis.set_xlabel("ms")
        axis.set_ylabel("live MB")
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


def main(
    json_file: Annotated[
        Optional[Path], typer.Option("--json", help="write the rows here")
    ] = None,
    png: Annotated[
        Path, typer.Option(help="draw the memory timeline here")
    ] = HERE.parent / "build" / "demo_memory.png",
    steps: Annotated[int, typer.Option(min=1, help="timed steps of each run")] = 12,
    model: Annotated[
        Optional[list[str]], typer.Option(help="gpt or conv; default: both")
    ] = None,
    ratio: Annotated[
        Optional[list[float]],
        typer.Option(min=0.01, max=1.0, help="budgets as shares of the plain peak"),
    ] = None,
    policy: Annotated[
        Optional[str], typer.Option(help="eviction policy; default: the library's")
    ] = None,
) -> None:
    """Train a small GPT and a convolutional network within 70, 50 and 35 % of their
    peak memory, beside the same training without a budget, and compare."""
    names = model or list(MODELS)
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        raise typer.BadParameter(f"unknown {unknown}; there are {list(MODELS)}")
    comparisons = [compare(name, ratio or RATIOS, steps, policy) for name in names]
    rows = [row for comparison in comparisons for row in comparison.rows()]
    # Wide enough for the table, also where the output is a file.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table(comparisons))
    draw(comparisons, png)
    console.print(f"memory timeline: {png}")
    if json_file:
        text = json.dumps({"rows": [asdict(row) for row in rows]}, indent=2)
        json_file.write_text(text + "\n", encoding="utf-8")
        console.print(f"rows: {json_file}")
    if not all(row.is_good for row in rows):
        console.print("[bold red]a run broke its budget or computed something else")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
