#!/usr/bin/env bash
# cuda_allocator.sh [--rounds N] [--json FILE]
# Times CUDA's caching allocator where a free block fits: the wheel, remat off, against
# stock torch, interleaved, on the emulated device. Makes an environment with stock torch
# in build/stock first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stock=$(bash "$here/stock_python.sh")
exec bash "$here/../../build_scripts/with_env.sh" --emulate-cuda \
  python "$here/cuda_allocator.py" --stock-python "$stock" "$@"
