"""Every script of ``shared/cases`` gives the same tensors with remat as without.

Within a budget a script may run out of memory instead, unless it is in
``MUST_COMPLETE``; the error must be complete, and the script run as ever after it.

The scripts are not part of the repository: they are looked for in the folder that
``TORCH_REMAT_CASES`` names, or in ``../shared/cases`` beside the repository. What
they taught is in the other tests of this folder too.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

import case_worker
import runs

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(
    os.environ.get("TORCH_REMAT_CASES", HERE.parents[2] / "shared" / "cases")
)
CASES = sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))
TIMEOUT_S = 900

# What must complete within its budget, by the number that the script's name starts
# with. What is evicted depends on measured times, so these are the scripts that also
# complete with 0.05 less of what is above the floor.
_DOWN_TO = {
    "budget-0.2": """
    002 024 056 062 100
    """,
    "budget-0.4": """
    004 006 008 014 018 020 022 026 030 054 058 060 064 074 078 082 084 090 092 102
    110 116 124 126 128 200 204 206
    """,
    "budget-0.6": """
    010 012 040 050 070 072 076 080 094 096 104 106 112 114 118 122 202
    """,
}
MUST_COMPLETE = {
    (number, mode)
    for least, numbers in _DOWN_TO.items()
    for number in numbers.split()
    for mode, ratio in case_worker.RATIOS.items()
    if ratio >= case_worker.RATIOS[least]
}
if not torch.backends.mkldnn.is_available():
    # Their convolutions then unfold their input, which takes more than the budget.
    MUST_COMPLETE -= {
        ("008", "budget-0.4"),
        ("010", "budget-0.6"),
        ("020", "budget-0.4"),
        ("094", "budget-0.6"),
    }

Report = dict[str, object]


def run_case(case: str, device: str = "cpu") -> dict[str, Report]:
    """Run a case in all modes; a mode that kills its process is reported as that."""
    reports: dict[str, Report] = {}
    while missing := [mode for mode in case_worker.MODES if mode not in reports]:
        output, ending = _run_worker(case, missing, device)
        for line in output.splitlines():
            if line.startswith('{"mode"'):
                report = json.loads(line)
                reports[report["mode"]] = report
        for mode in missing:
            if mode not in reports:
                reports[mode] = {"mode": mode, "differences": [ending]}
                break
    return reports


def _run_worker(case: str, modes: list[str], device: str) -> tuple[str, str]:
    command = [sys.executable, str(HERE / "case_worker.py")]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    environment.pop("PYTORCH_REMAT_BUDGET", None)
    environment["CASE_DEVICE"] = device
    worker = subprocess.Popen(
        [*command, str(FOLDER / f"{case}.py"), *modes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = worker.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, 9)  # the worker's own session: its children too
        output, errors = worker.communicate()
        errors += f"\nno end after {TIMEOUT_S} s"
    tail = "\n".join(errors.splitlines()[-15:])
    return output, f"the process ended with {worker.returncode}: {tail}"


@pytest.fixture(scope="session")
def reports_of(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], dict[str, Report]]]:
    """Reports by case; all selected cases are started at once, two at a time."""
    selected = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "case" in item.callspec.params
    ]
    workers = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        futures = {
            case: pool.submit(run_case, case) for case in dict.fromkeys(selected)
        }
        yield lambda case: futures[case].result()
        for future in futures.values():
            future.cancel()


@pytest.mark.skipif(not CASES, reason=f"no case scripts in {FOLDER}")
@pytest.mark.parametrize("mode", case_worker.MODES)
@pytest.mark.parametrize("case", CASES or ["none"])
def test_case_equals_its_plain_run(
    case: str, mode: str, reports_of: Callable[[str], dict[str, Report]]
) -> None:
    report = reports_of(case)[mode]
    assert not report["differences"], "\n".join(
        [str(report), *map(str, report["differences"])]
    )
    if (case.split("_")[0], mode) in MUST_COMPLETE:
        assert "out_of_memory" not in report, report["out_of_memory"]


@runs.needs_gpu
@pytest.mark.parametrize(
    "cuda_case",
    [case for case in CASES if "TAGS = 'cuda'" in (FOLDER / f"{case}.py").read_text()]
    or [pytest.param("none", marks=pytest.mark.skip(reason="no case scripts"))],
)
def test_case_about_cuda_equals_its_plain_run(cuda_case: str) -> None:
    for report in run_case(cuda_case, "cuda").values():
        # A capture that needs evicted bytes is refused, and says what to do.
        wrong = [d for d in report["differences"] if "remat.pin() on what" not in d]
        assert not wrong, "\n".join([str(report), *map(str, wrong)])
