"""Bring the environment up to date and print its bin folder and, a line each, the
variables that the command needs.

Started by with_env.sh, which then runs the user's command in it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from remat_build.components import Interpreter
from remat_build.console import one_line_errors
from remat_build.emulation import Emulation
from remat_build.environment import Environment
from remat_build.project import Project


def main() -> None:
    parser = argparse.ArgumentParser(prog="with_env.sh", add_help=False)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--emulate-cuda", metavar="GPU")
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--capacity")
    options = parser.parse_args()
    project = Project.here()
    matrix = project.upstream["matrix"]
    command = os.environ.get("REMAT_PYTHON") or sys._base_executable
    python = Interpreter.ask(command, matrix["python"])
    packages = matrix["debian_packages"] + matrix["test_packages"]
    wheel = options.wheel.resolve(strict=True) if options.wheel else None
    environment = Environment(project, python, wheel)
    print(environment.ensure(packages))
    if options.emulate_cuda:
        emulation = Emulation(
            options.emulate_cuda, options.timing, options.devices, options.capacity
        )
        torch = environment.site_packages / "torch"
        for name, value in emulation.variables(project, python, torch).items():
            print(f"{name}={value}")


if __name__ == "__main__":
    with one_line_errors():
        main()
