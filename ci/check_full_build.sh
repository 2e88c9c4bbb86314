#!/usr/bin/env bash
# Checks that the fork is part of upstream's own build; no wheel comes out.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$("$root/build_scripts/tools_python.sh")
PATH=$(dirname "$python"):$PATH exec "$python" "$root/ci/check_full_build.py" "$@"
