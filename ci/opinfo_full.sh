#!/usr/bin/env bash
# Runs every OpInfo entry of PyTorch's own table plainly and under chaos and compares
# bit for bit; prints entries run, equal, excepted with reasons. About half an hour on
# two cores. Options go to test/python/opinfo_sweep.py (--help lists them); with
# `--device cuda` it is the emulated device.
set -euo pipefail
cd "$(dirname "$0")/.."
emulate=()
[[ " $* " != *" --device cuda "* ]] || emulate=(--emulate-cuda)
exec bash build_scripts/with_env.sh "${emulate[@]}" python test/python/opinfo_sweep.py "$@"
