"""The page ``docs/benchmarks.md``: a frame of text around what the stores say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import report

NOTES = "notes.md"  # beside the results: what a person has to say about them

INTRODUCTION = """\
# Benchmarks against what users would pick instead

Made by `bash test/benchmark/peers.sh report` from the JSON files beside the plots; the
first part is [notes](benchmarks/notes.md), written by hand. How it is measured:
[test/benchmark](../test/benchmark/README.md#peers).

A *budget* is a share of the plain step's peak, which is the most bytes that a step
needs beyond those held before it (parameters, gradients, optimizer state, batch).
*Extra time* is step time over that of the plain steps beside it, less 1, median of the
rounds. A peer is the fastest of its settings whose measured peak is within the budget.
"""


def write(stores: dict[str, dict[str, Any]], folder: Path) -> list[Path]:
    """Write the page beside ``folder`` and the plots in it; return all files."""
    written = [folder.with_suffix(".md")]
    lines = [INTRODUCTION]
    notes = folder / NOTES
    if notes.exists():
        lines.append(notes.read_text(encoding="utf-8"))
    for name, data in stores.items():
        plot = folder / f"{name}.svg"
        if data["models"]:
            report.draw(data, plot)
            written.append(plot)
        lines += _section(name, data, f"{folder.name}/{plot.name}")
    text = "\n".join(lines).rstrip() + "\n"
    written[0].write_text(text, encoding="utf-8")
    return written


def _section(name: str, data: dict[str, Any], plot: str) -> Iterator[str]:
    about = ", ".join(f"{key} {value}" for key, value in data["environment"].items())
    yield f"## {name}"
    yield ""
    yield f"{about}. Points: [{name}.json](benchmarks/{name}.json)."
    yield ""
    if data["models"]:
        yield f"![step time over peak of each model]({plot})"
        yield ""
        yield from report.summary_lines(data)
        yield ""
        for lines in (
            report.table_lines,
            report.throughput_lines,
            report.lowest_lines,
            report.overhead_lines,
            report.record_lines,
            report.unequal_lines,
        ):
            yield from lines(data)
            yield ""
    yield from report.scenario_lines(data)
