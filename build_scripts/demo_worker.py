"""One training run in a process of its own, stepped by ``demo.py`` over its pipes.

A process per run has its own allocator counters and its own resident peak, and the
runs can be stepped in turn, so that whatever slows the machine slows all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
import time
from pathlib import Path

import torch
import torch.cuda.remat as remat

import demo_models

SAMPLE_S = 0.0005


class MemoryTimeline(threading.Thread):
    """Samples the live bytes until stopped: ``points`` are (seconds, bytes)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.points: list[tuple[float, int]] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        start = time.perf_counter()
        while not self._stopping.is_set():
            now = time.perf_counter() - start
            self.points.append((now, remat.memory_allocated("cpu")))
            time.sleep(SAMPLE_S)

    def stop(self) -> list[tuple[float, int]]:
        self._stopping.set()
        self.join()
        return self.points


def resident_peak_bytes() -> int:
    """Return the most memory this process ever had resident, as the system saw it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
    return int(found.group(1)) * 1024 if found else 0


def fingerprint(model: torch.nn.Module) -> str:
    """Return a hash over the bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def answer(command: str, training: demo_models.Training) -> dict[str, object]:
    """Carry out one command of the parent."""
    if command == "finish":
        stats = remat.stats("cpu")
        return {
            "peak_bytes": remat.max_memory_allocated("cpu"),
            "resident_peak_bytes": resident_peak_bytes(),
            "evictions": stats.evictions,
            "replays": stats.replays,
            "parameters": fingerprint(training.model),
        }
    timeline = MemoryTimeline() if command == "traced step" else None
    if timeline:
        timeline.start()
    start = time.perf_counter()
    loss = training.step()
    seconds = time.perf_counter() - start
    points = timeline.stop() if timeline else []
    return {"loss": loss.hex(), "seconds": seconds, "timeline": points}


def main() -> None:
    """Build the training, then answer one line of JSON to each line of commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=demo_models.MODELS)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--policy")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.budget is not None:
        remat.enable(options.budget, device="cpu", policy=options.policy)
    training = demo_models.MODELS[options.model]()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(line.strip(), training)
        except torch.OutOfMemoryError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
