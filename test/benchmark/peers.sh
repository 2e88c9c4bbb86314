#!/usr/bin/env bash
# peers.sh [--timing [GPU]] [measure|report|quick] [OPTION]...
# Compares training within a budget with checkpointing, compilation and other policies,
# at equal measured peak: `measure` (the default) measures what is not in docs/benchmarks
# yet, `report` writes docs/benchmarks.md and the plots, `quick FOLDER` tries everything in seconds. With --timing on the emulated
# device, at real size (GPU: h100-80gb if not given). `measure --help` lists the options.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
device=()
if [[ ${1:-} == --timing ]]; then
  shift
  gpu=h100-80gb
  case ${1:-} in a100-40gb | h100-80gb | h200) gpu=$1; shift ;; esac
  # More than it has, so that the plain run fits.
  device=(--emulate-cuda "$gpu" --timing --capacity 1024GiB)
  # The allocator's setting for programs short of memory.
  export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
  # The next step waits for a plan anyway.
  export PYTORCH_REMAT_PLANNER_SHARE=${PYTORCH_REMAT_PLANNER_SHARE:-100%}
fi
command=measure
case ${1:-} in measure | report | quick) command=$1; shift ;; esac
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
exec bash "$here/../../build_scripts/with_env.sh" "${device[@]}" \
  python -m peers "$command" "$@"
