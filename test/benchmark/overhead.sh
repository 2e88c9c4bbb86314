#!/usr/bin/env bash
# overhead.sh [--model gpt|conv] [--steps N] [--json FILE]
# Times the wheel with an unlimited budget, the wheel not enabled and stock torch,
# interleaved. Makes an environment with stock torch in build/stock first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stock=$(bash "$here/stock_python.sh")
exec bash "$here/../../build_scripts/with_env.sh" \
  python "$here/overhead.py" --stock-python "$stock" "$@"
