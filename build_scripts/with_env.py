"""Bring the environment up to date and print its bin folder.

Started by with_env.sh, which then runs the user's command in it.
"""

from __future__ import annotations

import os
import sys

from remat_build.components import Interpreter
from remat_build.console import one_line_errors
from remat_build.environment import Environment
from remat_build.project import Project


def main() -> None:
    project = Project.here()
    matrix = project.upstream["matrix"]
    command = os.environ.get("REMAT_PYTHON") or sys._base_executable
    python = Interpreter.ask(command, matrix["python"])
    packages = matrix["debian_packages"] + matrix["test_packages"]
    print(Environment(project, python).ensure(packages))


if __name__ == "__main__":
    with one_line_errors():
        main()
