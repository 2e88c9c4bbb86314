#!/usr/bin/env bash
# with_env.sh COMMAND...: runs a command where the built wheel is installed.
# Builds the wheel and sets everything up as far as that is needed; a run with
# nothing to do takes about a second. See docs/building.md.
set -euo pipefail
if [[ $# -eq 0 || $1 == --help || $1 == -h ]]; then
  sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
  exit $(($# == 0))
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$("$here/tools_python.sh")
bin=$(PATH=$(dirname "$tools"):$PATH "$tools" "$here/with_env.py")
unset PYTHONHOME
VIRTUAL_ENV=$(dirname "$bin") PATH=$bin:$PATH exec "$@"
