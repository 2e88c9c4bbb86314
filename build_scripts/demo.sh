#!/usr/bin/env bash
# demo.sh [--json FILE] [--png FILE] [--steps N] [--model gpt|conv] [--ratio R]...
# Sets everything up, then trains a small GPT and a convolutional network without a
# budget and within 70, 50 and 35 % of that run's peak, and compares: memory, time,
# losses, parameters. --help lists the options.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec bash "$here/with_env.sh" python "$here/demo.py" "$@"
