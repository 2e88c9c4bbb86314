#!/usr/bin/env bash
# test.sh [TIER]...: sets everything up and runs the tests that this machine can:
#   lint patches core wheel full python cuda
# Without arguments: all of them, in this order. A failing tier does not stop the
# later ones; the exit code says whether all passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
readonly TIERS=(lint patches core wheel full python cuda)
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"
  exit 0
fi

env_run() { bash build_scripts/with_env.sh "$@"; }

tier_lint() {
  local scripts python cpp
  mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
  mapfile -t python < <(git ls-files '*.py')
  mapfile -t cpp < <(git ls-files '*.h' '*.cpp')
  env_run shellcheck "${scripts[@]}" || return 1
  env_run ruff check "${python[@]}" || return 1
  env_run ruff format --check "${python[@]}" || return 1
  env_run mypy || return 1
  env_run clang-format --dry-run --Werror "${cpp[@]}" || return 1
  env_run python ci/check_layers.py
}

tier_patches() {
  env_run python ci/check_patches.py || return 1
  env_run python -m pytest -q test/patches
}

tier_core() {
  cmake -S c10_cuda_allocator -B build/core -G Ninja &&
    cmake --build build/core &&
    ctest --test-dir build/core --output-on-failure -j 2
}

tier_wheel() { bash ci/check_wheel.sh; }

tier_full() { bash ci/check_full_build.sh; }

tier_python() {
  # Two processes, a file each: a crash costs its file and not the whole tier.
  env_run python -m pytest -q -n 2 --dist loadfile test/python "${PYTEST_OPTIONS[@]}"
}

tier_cuda() {
  # The device itself; then remat on it: the tests of CUDA, and those of the python tier
  # that are parametrized by device. The allocator's tests look at the memory of the whole
  # process, and have one of their own. The shared cases have no device. A search in the
  # background gets no CPU here: two processes compute what the device would.
  local run=(env_run --emulate-cuda --devices 2 python -m pytest -q)
  "${run[@]}" -n 2 --dist loadfile test/emulated_cuda "${PYTEST_OPTIONS[@]}" || return 1
  "${run[@]}" test/python/test_cuda_allocator.py "${PYTEST_OPTIONS[@]}" || return 1
  "${run[@]}" -n 2 --dist loadfile -k cuda --ignore test/python/test_cuda_allocator.py \
    --ignore test/python/test_cases.py \
    --deselect "test/python/test_planned.py::test_a_search_outlives_the_block_it_began_in[cuda]" test/python \
    "${PYTEST_OPTIONS[@]}"
}

read -r -a PYTEST_OPTIONS <<<"${REMAT_PYTEST_OPTIONS:-}"
tiers=("$@")
[[ $# -gt 0 ]] || tiers=("${TIERS[@]}")
for tier in "${tiers[@]}"; do
  if [[ ! " ${TIERS[*]} " == *" $tier "* ]]; then
    echo "no tier is called $tier; there are: ${TIERS[*]}" >&2
    exit 2
  fi
done

echo "== set-up: build the wheel, install it with what the tests need"
start=$SECONDS
if ! env_run true; then
  echo "== set-up FAILED"
  exit 1
fi
echo "== set-up done in $((SECONDS - start)) s"

failed=()
for tier in "${tiers[@]}"; do
  echo "== $tier"
  start=$SECONDS
  if "tier_$tier"; then
    echo "== $tier passed in $((SECONDS - start)) s"
  else
    echo "== $tier FAILED in $((SECONDS - start)) s"
    failed+=("$tier")
  fi
done
echo "== total: $SECONDS s"
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "== FAILED: ${failed[*]}"
  exit 1
fi
echo "== all passed: ${tiers[*]}"
