"""Trains one of the demo's models, one step per line on standard input.

Runs under stock torch too: ``torch.cuda.remat`` is imported only where it is used.
"""

from __future__ import annotations

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "build_scripts"))

import torch

import demo_models


def main() -> None:
    """Print ``ready`` and the version, then the seconds of each step."""
    model, mode = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if mode == "recorded":
        import torch.cuda.remat as remat

        remat.enable(float("inf"), device="cpu")
    training = demo_models.MODELS[model]()
    print(f"ready {torch.__version__}", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        training.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
