#!/usr/bin/env bash
# pytorch_cuda_tests.sh [-k EXPRESSION] [--json FILE]
# Runs the tests on memory of PyTorch's own test/test_cuda.py on the emulated device with
# stock torch and with the wheel, remat off, and compares their results test by test.
# About 20 minutes on two cores; CI does not call it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stock=$(bash "$root/test/benchmark/stock_python.sh")
# Some of these tests have races of their own.
export EMULATED_CUDA_RACES=warn
exec bash "$root/build_scripts/with_env.sh" --emulate-cuda --devices 2 --capacity 8GiB \
  python "$root/ci/pytorch_cuda_tests.py" --stock-python "$stock" "$@"
