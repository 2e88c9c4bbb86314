"""Models of the families that people train, each with a small and a real size.

``build(name, size)`` makes one on the default device (``with torch.device("cuda"):``).
Plain PyTorch; nothing here knows of rematerialization. Shapes never depend on data, so
all run in timing mode, too.
"""

from __future__ import annotations

import importlib

from ._workload import REAL, SMALL, Training, Workload

NAMES = (
    "bert",
    "densenet",
    "gcn",
    "gpt2",
    "inception",
    "lstm",
    "moe",
    "resnet",
    "tree_lstm",
    "unet",
    "vit",
)


def build(name: str, size: str = SMALL) -> Workload:
    """Make the model ``name`` (one of ``NAMES``) of ``size``: small or real."""
    if name not in NAMES or size not in (SMALL, REAL):
        raise ValueError(
            f"no model {name!r} of size {size!r}: names are {', '.join(NAMES)}; "
            f"sizes {SMALL} and {REAL}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    workload = module.build(size)
    assert isinstance(workload, Workload)
    return workload


__all__ = ["NAMES", "REAL", "SMALL", "Training", "Workload", "build"]
