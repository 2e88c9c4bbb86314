"""``python -m torch.cuda.remat simulate|plan``: what-ifs on recorded traces."""

from __future__ import annotations

import json
import sys
from typing import List, Optional

from typing_extensions import Annotated

from . import _C
from ._config import format_bytes, parse_bytes
from ._plan import Plan, plan as make_plan
from ._simulate import Point, sweep, Trace


try:
    import typer
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
except ImportError as error:
    sys.exit(
        f"python -m torch.cuda.remat needs {error.name}, which torch does not: "
        "pip install typer rich"
    )

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="What a recorded training step would cost with other policies and budgets.",
)
# Tables and bars on the error stream leave the output to --json.
console = Console()
progress_console = Console(stderr=True)
# Sweeps shorter than this are over before anyone reads a bar.
_LEAST_FOR_BAR = 20


def _split(text: str) -> List[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _fail(message: str) -> typer.BadParameter:
    return typer.BadParameter(message)


def _load(paths: List[str]) -> List[Trace]:
    try:
        return [Trace(path) for path in paths]
    except ValueError as error:
        raise _fail(str(error)) from None


def _check_policies(names: List[str], dtr_rules: bool) -> List[str]:
    known = _C.dtr_policies() if dtr_rules else _C.policies()
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise _fail(
            f"unknown {', '.join(unknown)}; the policies are {', '.join(known)}"
        )
    return names


def _ratios(text: str) -> List[float]:
    try:
        ratios = [float(part) for part in _split(text)]
    except ValueError:
        raise _fail(f"{text!r} is not a list of numbers such as 0.5,0.3") from None
    if any(not 0 < ratio <= 10 for ratio in ratios):
        raise _fail(f"ratios are shares of the peak, above 0; got {text!r}")
    return ratios


@app.command()
def simulate(
    traces: Annotated[
        List[str],
        typer.Argument(
            metavar="TRACE...", help="from record_trace, or logs of DTR's prototype"
        ),
    ],
    policy: Annotated[
        str, typer.Option(help="names, separated by commas; 'all' for every one")
    ] = _C.default_policy(),
    ratio: Annotated[
        str, typer.Option(help="budgets as shares of the peak, such as 0.5,0.3")
    ] = "",
    budget: Annotated[
        Optional[List[str]],
        typer.Option(help="a budget, such as 8GiB; may be repeated"),
    ] = None,
    dtr_rules: Annotated[
        bool,
        typer.Option("--dtr-rules", help="as DTR's published simulator does"),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a list of objects")
    ] = False,
    plot: Annotated[
        Optional[str],
        typer.Option(help="draw overhead over budget into this file (.png, .svg)"),
    ] = None,
    convert: Annotated[
        Optional[str],
        typer.Option(
            help="also write the trace to this file, as a DTR log if it ends in .log"
        ),
    ] = None,
) -> None:
    """Run each trace with each policy at each budget."""
    names = (
        list(_C.dtr_policies() if dtr_rules else _C.policies())
        if policy == "all"
        else _split(policy)
    )
    names = _check_policies(names, dtr_rules)
    try:
        budgets = [parse_bytes(text) for text in budget or []]
    except ValueError as error:
        raise _fail(str(error)) from None
    ratios = _ratios(ratio or ("" if budgets else "1.0,0.7,0.5,0.3"))
    loaded = _load(traces)
    if convert is not None:
        if len(loaded) != 1:
            raise _fail("--convert takes one trace")
        loaded[0].convert(convert)
    total = len(loaded) * len(names) * (len(ratios) + len(budgets))
    points: List[Point] = []
    with Progress(
        console=progress_console, transient=True, disable=total < _LEAST_FOR_BAR
    ) as bar:
        task = bar.add_task("simulating", total=total)
        for number, point in sweep(loaded, names, ratios, budgets, dtr_rules=dtr_rules):
            points.append(point)
            bar.update(task, completed=number)
    if as_json:
        print(json.dumps([point.to_dict() for point in points], indent=1))
    else:
        _print_points(points)
    if plot is not None:
        _plot(points, plot)


def _print_points(points: List[Point]) -> None:
    table = Table()
    for title in ("trace", "policy"):
        table.add_column(title, overflow="fold")
    for title in (
        "ratio",
        "budget",
        "overhead",
        "evictions",
        "replays",
        "deepest",
        "peak",
    ):
        table.add_column(title, justify="right")
    for point in points:
        table.add_row(
            point.trace,
            point.policy,
            f"{point.ratio:.2f}",
            format_bytes(point.budget_bytes),
            f"{point.overhead:.3f}" if point.feasible else "does not fit",
            str(point.evictions),
            str(point.replays),
            str(point.deepest_replay),
            format_bytes(point.peak_bytes),
            style=None if point.feasible else "red",
        )
    console.print(table)


def _plot(points: List[Point], path: str) -> None:
    try:
        import matplotlib
    except ImportError:
        raise _fail("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted({point.trace for point in points})
    figure, axes = pyplot.subplots(
        len(names), 1, figsize=(7, 3.5 * len(names)), squeeze=False
    )
    for axis, name in zip(axes[:, 0], names):
        for policy in sorted({point.policy for point in points}):
            curve = sorted(
                (point.ratio, point.overhead)
                for point in points
                if point.trace == name and point.policy == policy and point.feasible
            )
            if curve:
                axis.plot(*zip(*curve), marker="o", markersize=3, label=policy)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("budget over peak without one")
        axis.set_ylabel("time over no budget")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    progress_console.print(f"wrote {path}")


@app.command()
def plan(
    trace: Annotated[str, typer.Argument(metavar="TRACE")],
    policy: Annotated[str, typer.Option(help="names to choose from")] = "all",
    most_overhead: Annotated[
        float, typer.Option(min=1.0, help="time over no budget that is worth it")
    ] = 1.1,
) -> None:
    """Say which budgets work, what each costs, and which one to take."""
    names = _C.policies() if policy == "all" else _split(policy)
    names = _check_policies(list(names), dtr_rules=False)
    (loaded,) = _load([trace])
    with progress_console.status("simulating"):
        result = make_plan(loaded, names, most_overhead=most_overhead)
    _print_plan(result)


def _print_plan(result: Plan) -> None:
    trace = result.trace
    table = Table(
        title=f"{trace.name}: peak {format_bytes(trace.peak_bytes)}, "
        f"{trace.cost_ns / 1e6:.1f} ms"
    )
    for title in ("budget", "ratio", "time over none", "policy", "replays"):
        table.add_column(title, justify="right")
    for point in result.best:
        if point is not None:
            table.add_row(
                format_bytes(point.budget_bytes),
                f"{point.ratio:.2f}",
                f"{point.overhead:.3f}",
                point.policy,
                str(point.replays),
                style="bold" if point is result.recommended else None,
            )
    console.print(table)
    if result.holes:
        listed = ", ".join(f"{ratio:.2f}" for ratio in result.holes)
        console.print(f"Fail although smaller ones work: {listed}.")
    if result.recommended is None:
        console.print("No budget below the peak works.")
        return
    best = result.recommended
    console.print(
        f'Recommended: enable("{best.budget_bytes / 2**20:.0f}MiB", '
        f'policy="{best.policy}"), {best.overhead:.3f} of the time without a budget.'
    )


if __name__ == "__main__":
    app(prog_name="python -m torch.cuda.remat")
