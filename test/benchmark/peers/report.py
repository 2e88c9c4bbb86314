"""Writes the Markdown page and the plots from the stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .choice import Choice, choose, dearest_survived, extra, lowest_peak
from .methods import COMPILED, POLICIES, STATIC_EAGER, TARGETS, Method

COLORS = {
    "checkpoint": "tab:orange",
    "selective": "tab:green",
    "compile": "tab:gray",
    "compile_checkpoint": "black",
    "planned": "tab:blue",
    "dtr": "tab:red",
    "dte": "tab:purple",
    "coop": "tab:brown",
}


def choices(data: dict[str, Any], model: str) -> list[Choice]:
    """Return what a store says of a model, target by target."""
    found = data["models"][model]
    peak = found["plain"]["peak_bytes"]
    return [choose(found["points"], peak, target) for target in TARGETS]


def percent(share: float | None, missing: str = "-") -> str:
    return missing if share is None else f"{100 * share:+.0f} %"


def table_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield the table of all models and targets."""
    yield (
        "| model | budget | best static eager peer | its extra time | "
        + " | ".join(f"`{policy}`" for policy in POLICIES)
        + " | `planned` over the peer's | best compiled peer |"
    )
    yield "|---" * (len(POLICIES) + 6) + "|"
    for model in sorted(data["models"]):
        for choice in choices(data, model):
            part = choice.part("planned")
            compiled = "none" if choice.compiled is None else f"`{choice.compiled}` "
            compiled += percent(choice.compiled_extra, "")
            cells = [
                model,
                f"{choice.target:.0%}",
                f"`{choice.static}`" if choice.static else "none gets there",
                percent(choice.static_extra),
                *(_ours(choice, policy) for policy in POLICIES),
                "-" if part is None else f"{part:.2f}",
                compiled,
            ]
            yield "| " + " | ".join(cells) + " |"


def _ours(choice: Choice, policy: str) -> str:
    if policy in choice.ours and choice.ours[policy] is None:
        why = choice.why_not[policy]
        return "out of memory" if "OutOfMemory" in why else f"no: {why[:60]}"
    return percent(choice.ours.get(policy))


def summary_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield counts of where ours is ahead, and where not."""
    parts: list[float] = []
    alone = neither = lost = 0
    for model in data["models"]:
        for choice in choices(data, model):
            mine = choice.ours.get("planned")
            part = choice.part("planned")
            if part is not None:
                parts.append(part)
            elif choice.static is None and mine is not None:
                alone += 1
            elif choice.static is None and "planned" in choice.ours:
                neither += 1
            elif choice.static is not None and "planned" in choice.why_not:
                lost += 1
    ahead = sum(part <= 0.6 for part in parts)
    level = sum(0.6 < part <= 1 for part in parts)
    yield (
        f"- `planned` and a static eager peer both get there: {len(parts)} budgets. "
        f"Extra time at most 0.6 of the peer's: {ahead}; 0.6 to 1: {level}; above: "
        f"{len(parts) - ahead - level}."
    )
    yield (
        f"- Only `planned` gets there: {alone}; only a peer does: {lost}; neither: "
        f"{neither}."
    )


def throughput_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield steps per second of `planned` over those of the best peers."""
    yield (
        "| model | budget | over the best static eager peer | over the best other "
        "policy |"
    )
    yield "|---" * 4 + "|"
    for model in sorted(data["models"]):
        for choice in choices(data, model):
            mine = choice.ours.get("planned")
            if mine is None:
                continue
            static = dynamic = "it alone gets there"
            if choice.static_extra is not None:
                static = f"{(1 + choice.static_extra) / (1 + mine):.3f}"
            if best := choice.dynamic():
                dynamic = f"{(1 + best[1]) / (1 + mine):.3f} (`{best[0]}`)"
            yield f"| {model} | {choice.target:.0%} | {static} | {dynamic} |"


def lowest_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield how low each family gets, and throughput over dtr's at its tightest."""
    yield (
        "| model | plain peak MB | held before a step MB | static peers' lowest | "
        "compiled peers' lowest | tightest budget of `dtr` | throughput of `planned` "
        "over `dtr` there |"
    )
    yield "|---" * 7 + "|"
    for model in sorted(data["models"]):
        found = data["models"][model]
        points, plain = found["points"], found["plain"]
        lows = []
        for families in (STATIC_EAGER, COMPILED):
            low = lowest_peak(points, families)
            if low is None:
                lows.append("-")
            else:
                share = low["peak_bytes"] / plain["peak_bytes"]
                lows.append(f"{share:.0%} (`{low['method']}`, {percent(extra(low))})")
        tight = dearest_survived(points, "dtr")
        budget = speed = "-"
        if tight:
            share = Method.parse(tight["method"]).share
            budget = f"{share:.0%}"
            ours = choose(points, plain["peak_bytes"], share).ours.get("planned")
            if ours is not None:
                speed = f"{(1 + extra(tight)) / (1 + ours):.2f}"
        yield (
            f"| {model} | {plain['peak_bytes'] / 1e6:.0f} | "
            f"{plain['held_bytes'] / 1e6:.0f} | {' | '.join(lows)} | {budget} | "
            f"{speed} |"
        )


def overhead_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield what `planned` did in a step: replays, and time outside ops and replays."""
    yield (
        "| model | budget | ops | evictions | replays | longest | recompute, of step | "
        "bookkeeping, of step |"
    )
    yield "|---" * 8 + "|"
    for model in sorted(data["models"]):
        points = {p["method"]: p for p in data["models"][model]["points"]}
        for target in TARGETS:
            point = points.get(f"remat:planned@{target:g}")
            if point is None or "failure" in point:
                continue
            counts = point["counts_per_step"]
            step_ns = point["wall_s"] * 1e9
            recompute = counts["recompute_ns"] / step_ns
            # A real clock over a modelled one says nothing.
            bookkeeping = f"{counts['overhead_ns'] / step_ns:.1%}"
            if data["environment"]["device"] == "cuda":
                bookkeeping = "not modelled"
            yield (
                f"| {model} | {target:.0%} | {counts['ops_captured']} | "
                f"{counts['evictions']} | {counts['replays']} | "
                f"{point['max_replay_depth']} | {recompute:.1%} | "
                f"{bookkeeping} |"
            )


def record_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield what records take after a forward pass."""
    if not data.get("records"):
        return
    yield "| model | storages | op records | bytes for each storage |"
    yield "|---|---|---|---|"
    for model, found in sorted(data["records"].items()):
        each = found["bytes"] / found["storages"]
        yield f"| {model} | {found['storages']} | {found['op_records']} | {each:.0f} |"


def unequal_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield the methods whose losses are not the plain run's, and those that failed."""
    for model in sorted(data["models"]):
        points = data["models"][model]["points"]
        unequal = [f"`{p['method']}`" for p in points if p.get("losses_equal") is False]
        if unequal:
            yield f"- {model}: losses differ from plain in {', '.join(unequal)}."
        for point in points:
            family = Method.parse(point["method"]).family
            if "failure" in point and family != "remat":
                yield f"- {model}, `{point['method']}` failed: {point['failure']}"


def scenario_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield a table for each scenario."""
    for name, scenario in data["scenarios"].items():
        points = scenario["points"]
        yield f"### {name}: `{scenario['model']}`, {scenario['steps']} steps"
        yield ""
        peak = scenario["plain"]["peak_bytes"]
        yield f"{scenario['about'].capitalize()}. Target: a peak of "
        yield f"{scenario['share'] * peak / 1e6:.1f} MB."
        yield ""
        yield "| method | peak MB | time over plain | CPU time over plain | losses |"
        yield "|---|---|---|---|---|"
        for point in points:
            if "failure" in point:
                yield (
                    f"| `{point['method']}` | failed in step "
                    f"{point['failed_at_step'] + 1}: {point['failure']} | | | |"
                )
                continue
            cpu = point["total_cpu_ratio"]
            equal = "equal" if point["losses_equal"] else "differ"
            if data["environment"]["device"] == "cuda":
                equal = "not computed"
            yield (
                f"| `{point['method']}` | {point['peak_bytes'] / 1e6:.1f} | "
                f"{point['total_wall_ratio']:.3f} | "
                f"{'-' if cpu is None else f'{cpu:.3f}'} | {equal} |"
            )
        yield ""


def draw(data: dict[str, Any], file: Path) -> None:
    """Draw step time over peak, a plot for each model, lowest peaks to the left."""
    import matplotlib

    matplotlib.use("Agg")
    # The same text for the same figures, so that a change shows in a diff.
    matplotlib.rcParams["svg.hashsalt"] = "remat"
    import matplotlib.pyplot as plt

    names = sorted(data["models"])
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.6 * columns, 3.4 * rows), squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names):
        found = data["models"][name]
        series: dict[str, list[tuple[float, float]]] = {}
        for point in found["points"]:
            if "failure" in point:
                continue
            method = Method.parse(point["method"])
            label = method.policy if method.family == "remat" else method.family
            share = point["peak_bytes"] / found["plain"]["peak_bytes"]
            series.setdefault(label, []).append((share, 1 + extra(point)))
        for label, pairs in sorted(series.items()):
            x, y = zip(*sorted(pairs))
            line = "-" if label in POLICIES else ""
            axis.plot(x, y, line, marker="o", ms=3, color=COLORS[label], label=label)
        axis.axhline(1, color="lightgray", lw=1, zorder=0)
        axis.set(title=name, xlabel="peak, of plain", ylabel="step time, of plain")
        top = max((y for pairs in series.values() for _, y in pairs), default=1)
        axis.set_ylim(top=min(top * 1.05, 3))
    handles: dict[str, Any] = {}
    for axis in axes.flat[: len(names)]:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncol=4)
    figure.tight_layout(rect=(0, 0.06 if rows > 2 else 0.14, 1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
