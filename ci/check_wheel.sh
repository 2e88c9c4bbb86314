#!/usr/bin/env bash
# Checks the built wheel against the stock one; see --help.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$("$root/build_scripts/tools_python.sh")
PATH=$(dirname "$python"):$PATH exec "$python" "$root/ci/check_wheel.py" "$@"
