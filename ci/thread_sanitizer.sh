#!/usr/bin/env bash
# thread_sanitizer.sh [THREADS [OPS]]
# Runs the engine and the patched CUDA allocator with threads under ThreadSanitizer, on
# the emulated device, with and without expandable segments; then the planner's thread
# beside an engine that trains. Locks taken in two orders, races, wrong values and a
# budget that is passed are errors. About 8 minutes to build the first time, then
# seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash build_scripts/with_env.sh true
cache=$(find build -path 'build/splice-*/cmake/CMakeCache.txt' | sort | tail -n 1)
mapfile -t variables < <(sed -n 's/^\(REMAT_[A-Z_]*\):[A-Z]*=/-D\1=/p' "$cache")
build=build/threads
cmake -S test/cuda_threads -B "$build" -G Ninja -DREMAT_SANITIZE=thread "${variables[@]}" \
  >/dev/null
ninja -C "$build" allocator_threads
libraries=$build/lib:$build/runtime:$(sed -n 's/^REMAT_CPUINFO:[A-Z]*=//p' "$cache")
for setting in expandable_segments:False expandable_segments:True; do
  echo "== $setting"
  PYTORCH_CUDA_ALLOC_CONF=$setting EMULATED_CUDA_CAPACITY=1GiB \
    TSAN_OPTIONS=second_deadlock_stack=1 LD_LIBRARY_PATH=$libraries \
    "$build/allocator_threads" "$@"
done
echo "== the planner's thread"
cmake -S c10_cuda_allocator -B build/core-thread -G Ninja -DREMAT_SANITIZE=thread >/dev/null
ninja -C build/core-thread remat_tests
TSAN_OPTIONS=second_deadlock_stack=1 build/core-thread/remat_tests --gtest_brief=1 \
  --gtest_filter='*Plan*'
