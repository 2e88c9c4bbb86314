#!/usr/bin/env bash
# fragmentation.sh [GPU] [OPTION]...
# What becomes of the memory of an emulated GPU (h100-80gb if not given) within a budget,
# with our placement and with stock PyTorch's. `fragmentation.sh --help` lists the options.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
gpu=h100-80gb
case ${1:-} in a100-40gb | h100-80gb | h200) gpu=$1; shift ;; esac
exec bash "$here/../../build_scripts/with_env.sh" --emulate-cuda "$gpu" --timing \
  python "$here/fragmentation.py" measure "$@"
