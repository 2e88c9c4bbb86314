"""Compare PyTorch's own CUDA memory tests under stock torch and under the wheel.

Started by ``pytorch_cuda_tests.sh`` on the emulated device. Each test runs in both; a
test counts against the wheel where stock passes and the wheel does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_MEMORY = (
    "memory or alloc or caching or snapshot or cached or fraction or oom or "
    "MemPool or BlockState or record_stream or pinned"
)
_SECONDS_PER_TEST = 120


def results(python: str, expression: str) -> dict[str, str]:
    """Test -> passed, failed or skipped.

    What fails runs once more in a process of its own, as in PyTorch's own CI: a failing
    test may leave what fails the next ones.
    """
    found = _run(
        python,
        ["-k", f"({expression}) and not Optims and not Autocast", "test_cuda.py"],
    )
    for name, result in found.items():
        if result == "failed":
            _, suite, test = name.rsplit(".", 2)
            again = _run(python, [f"test_cuda.py::{suite}::{test}"])
            found[name] = again.get(name, "failed")
    return found


def _run(python: str, tests: list[str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [python, "-m", "pytest", "-q", "--noconftest", *tests]
        command += ["--timeout", str(_SECONDS_PER_TEST), "-p", "no:cacheprovider"]
        command += [f"--junitxml={report.name}"]
        folder = ROOT / "build/upstream/test"
        subprocess.run(command, cwd=folder, stdout=sys.stderr)
        tree = ElementTree.parse(report.name)
    found = {}
    for case in tree.iter("testcase"):
        kinds = {child.tag for child in case}
        found[f"{case.get('classname')}.{case.get('name')}"] = (
            "skipped"
            if "skipped" in kinds
            else "failed"
            if kinds & {"failure", "error"}
            else "passed"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock-python", required=True)
    parser.add_argument("-k", dest="expression", default=_MEMORY)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ours = results(sys.executable, options.expression)
    stock = results(options.stock_python, options.expression)
    differ = {
        name: {"stock": stock.get(name, "absent"), "wheel": ours.get(name, "absent")}
        for name in sorted(ours.keys() | stock.keys())
        if ours.get(name) != stock.get(name)
    }
    for title, found in (("stock", stock), ("wheel", ours)):
        counts = {
            kind: list(found.values()).count(kind) for kind in set(found.values())
        }
        print(f"{title}: {len(found)} tests, {counts}")
    for name, both in differ.items():
        print(f"{name}: stock {both['stock']}, wheel {both['wheel']}")
    if options.json:
        options.json.write_text(
            json.dumps({"stock": stock, "wheel": ours, "differ": differ}, indent=2)
        )
    broken = [name for name, both in differ.items() if both["stock"] == "passed"]
    if broken:
        raise SystemExit(f"{len(broken)} tests pass with stock only")
    print("every test that passes with stock passes with the wheel")


if __name__ == "__main__":
    main()
