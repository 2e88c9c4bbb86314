#!/usr/bin/env bash
# with_env.sh [--wheel FILE]
#             [--emulate-cuda [GPU] [--timing] [--devices N] [--capacity SIZE]] COMMAND...
# Runs a command where the built wheel is installed. Builds the wheel and sets
# everything up as far as that is needed; a run with nothing to do takes about a second.
# With --wheel, installs that one (of the full build) instead of building one.
# With --emulate-cuda the command finds a CUDA device that there is not: a100-40gb,
# h100-80gb, h200, or test (the default, of 2 GiB); --timing computes nothing and models
# the time. See docs/building.md and docs/emulated_cuda.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '2,9s/^# //p' "${BASH_SOURCE[0]}"; }
options=()
while [[ $# -gt 0 && $1 == -* ]]; do
  case $1 in
    --emulate-cuda)
      options+=("$1")
      case ${2:-} in
        test | a100-40gb | h100-80gb | h200) options+=("$2"); shift ;;
        *) options+=(test) ;;
      esac ;;
    --timing) options+=("$1") ;;
    --wheel | --devices | --capacity) options+=("$1" "${2:?"$1 needs a value"}"); shift ;;
    --help | -h) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
if [[ $# -eq 0 ]]; then
  usage >&2
  exit 2
fi
if [[ " ${options[*]} " =~ \ --(timing|devices|capacity)\  && ${options[*]} != *--emulate-cuda* ]]; then
  echo "with_env.sh: --${BASH_REMATCH[1]} needs --emulate-cuda" >&2
  exit 2
fi
tools=$("$here/tools_python.sh")
lines=$(PATH=$(dirname "$tools"):$PATH "$tools" "$here/with_env.py" "${options[@]}")
mapfile -t lines <<<"$lines"
unset PYTHONHOME
VIRTUAL_ENV=$(dirname "${lines[0]}") PATH=${lines[0]}:$PATH exec env "${lines[@]:1}" "$@"
