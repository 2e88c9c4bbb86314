#!/usr/bin/env bash
# Tries the patches on another upstream tree; see docs/building.md, or --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$("$here/tools_python.sh")
PATH=$(dirname "$python"):$PATH exec "$python" "$here/check_upstream.py" "$@"
