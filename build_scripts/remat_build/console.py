"""One way to say what is being done, and one way to stop."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn


class BuildError(Exception):
    """What the user asked for cannot be done; the message is one line."""


def fail(message: str) -> NoReturn:
    raise BuildError(message)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Announce a long step, and how long it took."""
    say(f"{what} ...")
    started = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - started:.1f} s")


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a :class:`BuildError` into one line on stderr and exit status 1."""
    try:
        yield
    except BuildError as error:
        say(f"{Path(sys.argv[0]).name}: {error}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        say(f"{Path(sys.argv[0]).name}: interrupted; run it again to go on")
        raise SystemExit(130) from None


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """Run a command quietly and return its stdout; fail with its last words."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            input=stdin,
            env=env,
            text=True,
            capture_output=True,
        )
    except FileNotFoundError:
        fail(f"{command[0]} is not installed")
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        said = next(
            (w for w in words if "error" in w.lower()), words[-1] if words else ""
        )
        fail(f"`{' '.join(map(str, command[:4]))}` failed: {said}")
    return done.stdout


def run_compiler(command: list[str], *, progress: bool = False) -> None:
    """Run a step of the compilation; show what it says if it fails, or, on a
    terminal, its progress."""
    if progress and sys.stderr.isatty():
        failed = subprocess.run(command, stdout=sys.stderr).returncode != 0
    else:
        done = subprocess.run(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        failed = done.returncode != 0
        if failed:
            say(done.stdout[max(0, done.stdout.find("FAILED:")) :])
    if failed:
        fail(f"{command[0]} failed; its message is above")
