#!/usr/bin/env bash
# Prints the path of a Python with stock torch in build/stock, made on first use with
# the same packages for tests as beside the wheel.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
stock=$root/build/stock
if ! "$stock/bin/python" -c 'import torch, sklearn, pytest_timeout' 2>/dev/null; then
  bash "$root/build_scripts/with_env.sh" bash -c '
    python -m venv "$1" &&
    pip freeze | grep -iE "^(numpy|scikit-learn|pytest|pytest-timeout|expecttest|hypothesis|psutil)==" > "$1/requirements.txt" &&
    "$1/bin/pip" install --quiet torch==2.6.0 -r "$1/requirements.txt"' _ "$stock" >&2
fi
echo "$stock/bin/python"
