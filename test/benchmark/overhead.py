"""What the wheel costs where it evicts nothing: step times of interleaved runs.

Compares, one step of each in turn: the wheel with an unlimited budget against the
wheel not enabled, and (given ``--stock-python``, the interpreter of an environment
with stock torch) the wheel not enabled against stock torch. ``overhead.sh`` makes
that environment and calls this.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
WARM_UP_STEPS = 3


class Run:
    """A worker process and the seconds of its steps."""

    def __init__(self, python: str, model: str, mode: str) -> None:
        self.seconds: list[float] = []
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        environment.pop("PYTORCH_REMAT_BUDGET", None)
        self._process = subprocess.Popen(
            [python, str(HERE / "overhead_worker.py"), model, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.version = self._read().split()[1]

    def step(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.seconds.append(float(self._read()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds[WARM_UP_STEPS:])

    def _read(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a run ended with {self._process.wait()}")
        return line


def main() -> None:
    """Print medians and ratios; ``--json`` writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt", choices=("gpt", "conv"))
    parser.add_argument("--steps", type=int, default=40, help="timed steps of each run")
    parser.add_argument("--stock-python", help="interpreter that has stock torch 2.6.0")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()

    runs = {
        "off": Run(sys.executable, options.model, "off"),
        "recorded": Run(sys.executable, options.model, "recorded"),
    }
    if options.stock_python:
        runs["stock"] = Run(options.stock_python, options.model, "off")
    order = list(runs.values())
    for i in range(WARM_UP_STEPS + options.steps):
        first = i % len(order)
        for run in order[first:] + order[:first]:
            run.step()
    for run in order:
        run.close()

    ratios = {"unlimited budget / not enabled": ("recorded", "off", 1.03)}
    if options.stock_python:
        ratios["not enabled / stock"] = ("off", "stock", 1.01)
    for name, run in runs.items():
        print(f"{name:9} torch {run.version}: {run.median * 1e3:8.1f} ms (median)")
    found = {}
    for title, (above, below, most) in ratios.items():
        found[title] = round(runs[above].median / runs[below].median, 4)
        print(f"{title}: {found[title]:.3f} (wanted: at most {most})")
    if options.json:
        medians = {name: run.median for name, run in runs.items()}
        report = {"model": options.model, "median_s": medians, "ratios": found}
        options.json.write_text(json.dumps(report, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
