#!/usr/bin/env bash
# simulated.sh [GPU] [--model NAME]...
# What `planned` would recompute without addresses, and what anything must, on an
# emulated GPU (h100-80gb if not given).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
gpu=h100-80gb
case ${1:-} in a100-40gb | h100-80gb | h200) gpu=$1; shift ;; esac
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
exec bash "$here/../../build_scripts/with_env.sh" \
  --emulate-cuda "$gpu" --timing --capacity 1024GiB python "$here/simulated.py" "$@"
