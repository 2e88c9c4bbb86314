"""Ninja, with its progress told and how long the rest will take."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .console import fail, say

_STATUS = re.compile(r"\[(\d+)/(\d+)\] ")
_SHOWN_LINES = 40  # of what a failing step says


@dataclass
class Ninja:
    """Ninja in one build folder."""

    folder: Path
    jobs: int
    environment: dict[str, str]
    _started: float = field(default_factory=time.monotonic, init=False)
    _told: float = field(default=0.0, init=False)
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=200), init=False)

    def run(self, targets: Sequence[str] = ()) -> None:
        """Build the targets, or all; stop at the first step that fails."""
        log = self.folder / "ninja.log"
        failure: list[str] = []
        command = ["ninja", "-C", str(self.folder), f"-j{self.jobs}", *targets]
        with (
            open(log, "w") as stream,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**self.environment, "NINJA_STATUS": "[%f/%t] "},
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                stream.write(line)
                if status := _STATUS.match(line):
                    self._tell(int(status[1]), int(status[2]))
                if line.startswith(("FAILED:", "ninja: error:")) or failure:
                    failure.append(line)
        if sys.stderr.isatty() and self._told:
            say("")
        if process.returncode != 0:
            say("".join(failure[:_SHOWN_LINES]))
            fail(f"the build failed; all messages are in {log}; run it again to go on")

    def _tell(self, done: int, steps: int) -> None:
        """A line that is written over on a terminal, else one every minute. Steps that
        ccache serves are much shorter: the last ones tell how long the rest takes."""
        now = time.monotonic()
        self._ends.append(now)
        terminal = sys.stderr.isatty()
        if now - self._told < (1 if terminal else 60):
            return
        self._told = now
        text = f"step {done} of {steps}, {_duration(now - self._started)}"
        if len(self._ends) > 20:
            a_step = (now - self._ends[0]) / (len(self._ends) - 1)
            text += f", about {_duration(a_step * (steps - done))} left"
        print(
            f"\r{text}\033[K" if terminal else text,
            end="" if terminal else "\n",
            file=sys.stderr,
            flush=True,
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes > 59:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes > 9 else f"{minutes} min {rest} s"
