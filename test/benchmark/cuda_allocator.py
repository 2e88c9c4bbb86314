"""What the patches cost CUDA's caching allocator where a free block fits.

Started by ``cuda_allocator.sh``. Two processes, one with the wheel and one with stock
torch, allocate and free in turn; nothing is computed, so only the allocator is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

_WORKER = """
import sys, time, torch
sizes = [512, 65536, 1 << 20, 3 << 20, 12 << 20]
torch.cuda.init()
alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
free = torch._C._cuda_cudaCachingAllocator_raw_delete
stream = torch.cuda.current_stream().cuda_stream
kept = [alloc(size, stream) for size in sizes for _ in range(8)]
for address in kept:
    free(address)
print(torch.__version__, flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    for _ in range(4000):
        for size in sizes:
            free(alloc(size, stream))
    elapsed = time.perf_counter() - start
    print(elapsed / (4000 * len(sizes)) * 1e9, flush=True)
"""


class Worker:
    def __init__(self, python: str) -> None:
        # The executor follows every allocation, which is not what is timed.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("EMULATED_CUDA_EXECUTOR", "PYTORCH_REMAT_BUDGET")
        }
        self.ns: list[float] = []
        self._process = subprocess.Popen(
            [python, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.version = self._process.stdout.readline().strip()

    def round(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.ns.append(float(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Print the medians and the median of the ratios of each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock-python", required=True)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    ours, stock = Worker(sys.executable), Worker(options.stock_python)
    for i in range(options.rounds):
        for worker in (ours, stock) if i % 2 else (stock, ours):
            worker.round()
    ours.close()
    stock.close()
    ratios = [a / b for a, b in zip(ours.ns, stock.ns, strict=True)]
    result = {
        "wheel_ns": statistics.median(ours.ns),
        "stock_ns": statistics.median(stock.ns),
        "ratio": statistics.median(ratios),
        "rounds": options.rounds,
    }
    print(f"{ours.version}: {result['wheel_ns']:.0f} ns an allocation and its free")
    print(f"{stock.version}: {result['stock_ns']:.0f} ns")
    print(f"ratio, median of rounds: {result['ratio']:.3f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
