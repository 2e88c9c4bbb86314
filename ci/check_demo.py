#!/usr/bin/env python3
"""Check the rows that ``build_scripts/demo.sh --json FILE`` wrote.

Every run must have kept its budget and have computed what the plain run did. Times
are shown and not judged: a machine that is busy with other work proves nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

KEYS = {
    "model",
    "budget_ratio",
    "budget_bytes",
    "peak_bytes",
    "plain_peak_bytes",
    "step_ratio",
    "losses_equal",
    "params_equal",
    "evictions",
    "replays",
}


def complaints(row: dict[str, object]) -> list[str]:
    """Return what is wrong with a row, one line each."""
    name = f"{row.get('model')} at {row.get('budget_ratio')}"
    if set(row) != KEYS:
        return [f"{name}: keys differ: {sorted(set(row) ^ KEYS)}"]
    found = []
    if row["peak_bytes"] > row["budget_bytes"]:
        found.append(
            f"{name}: peak {row['peak_bytes']} above budget {row['budget_bytes']}"
        )
    if row["losses_equal"] is not True:
        found.append(f"{name}: losses differ from the plain run")
    if row["params_equal"] is not True:
        found.append(f"{name}: parameters differ from the plain run")
    if not row["evictions"]:
        found.append(f"{name}: nothing was evicted, so nothing was shown")
    return found


def main() -> int:
    """Print every complaint; the exit code says whether there is one."""
    if len(sys.argv) != 2:
        print("usage: check_demo.py FILE", file=sys.stderr)
        return 2
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"]
    found = [line for row in rows for line in complaints(row)]
    if not rows:
        found.append("there are no rows")
    print("\n".join(found) if found else f"{len(rows)} rows are good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
