"""Models of the families that people train, each with a small and a real size.

``build(name, size, device)`` makes one. Plain PyTorch: nothing here knows of
rematerialization. Shapes never depend on data, so all run in timing mode, too.
"""

from __future__ import annotations

import importlib

import torch

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


def build(name: str, size: str = SMALL, device: str = "cpu") -> Workload:
    """Make the model ``name`` (one of ``NAMES``) of ``size``: small or real."""
    if name not in NAMES or size not in (SMALL, REAL):
        raise ValueError(
            f"no model {name!r} of size {size!r}: names are {', '.join(NAMES)}; "
            f"sizes {SMALL} and {REAL}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    # Not before: what torchvision imports makes tensors and looks into them.
    with torch.device(device):
        workload = module.build(size)
    assert isinstance(workload, Workload)
    return workload


__all__ = ["NAMES", "REAL", "SMALL", "Training", "Workload", "build"]
