#!/usr/bin/env bash
# overhead.sh [--model gpt|conv] [--steps N] [--json FILE]
# Times the wheel with an unlimited budget, the wheel not enabled and stock torch,
# interleaved. Makes an environment with stock torch in build/stock first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
stock=$root/build/stock
if ! "$stock/bin/python" -c 'import torch, sklearn' 2>/dev/null; then
  # The same numpy and scikit-learn as beside the wheel.
  bash "$root/build_scripts/with_env.sh" bash -c '
    python -m venv "$1" &&
    pip freeze | grep -iE "^(numpy|scikit-learn)==" > "$1/requirements.txt" &&
    "$1/bin/pip" install --quiet torch==2.6.0 -r "$1/requirements.txt"' _ "$stock"
fi
exec bash "$root/build_scripts/with_env.sh" \
  python "$here/overhead.py" --stock-python "$stock/bin/python" "$@"
