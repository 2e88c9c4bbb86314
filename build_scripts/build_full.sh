#!/usr/bin/env bash
# Builds the wheel from source, all of it; see docs/building.md, or --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$("$here/tools_python.sh")
PATH=$(dirname "$python"):$PATH exec "$python" "$here/build_full.py" "$@"
