#!/usr/bin/env bash
# Builds the wheel (splice build); see docs/building.md, or --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$("$here/tools_python.sh")
PATH=$(dirname "$python"):$PATH exec "$python" "$here/build_wheel.py" "$@"
