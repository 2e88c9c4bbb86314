#!/usr/bin/env bash
# Prints the path of a Python that has what the build commands need: a virtual
# environment in the cache, made on first use.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TORCH_REMAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/torch-remat}
base=${REMAT_TOOLS_PYTHON:-python3}

if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "$(basename "$0"): needs Python 3.11 or newer to run (set REMAT_TOOLS_PYTHON)" >&2
  exit 1
fi
key=$( ("$base" -c 'import sys; print(sys.version, sys.base_prefix)'
        cat "$here/requirements.txt") | sha256sum | cut -c1-12)
tools=$cache/tools-$key
mkdir -p "$cache"
exec 9>"$cache/.tools-lock"
flock 9
if [[ ! -e $tools/complete ]]; then
  echo "set up build tools in $tools ..." >&2
  rm -rf "$tools"
  if ! "$base" -m venv "$tools" >&2; then
    echo "$(basename "$0"): cannot make a virtual environment (Debian: python3-venv)" >&2
    exit 1
  fi
  if ! "$tools/bin/python" -m pip install --quiet -r "$here/requirements.txt" >&2; then
    echo "$(basename "$0"): cannot install build_scripts/requirements.txt (no network?)" >&2
    exit 1
  fi
  touch "$tools/complete"
fi
echo "$tools/bin/python"
