"""Models of the families that people train, in three sizes.

``build(name, size, device)`` makes one: ``small`` for tests, ``cpu`` for steps of about
half a second on one thread, ``real`` as it is trained. Plain PyTorch: nothing here
knows of rematerialization. Shapes never depend on data, so all run in timing mode, too.
"""

from __future__ import annotations

import importlib

import torch

from ._workload import CPU, REAL, SMALL, Training, Workload

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
# Two for which others have published what their planners reach; they have one size.
PUBLISHED = ("rockmate_gpt", "rockmate_resnet")
SIZES = (SMALL, CPU, REAL)


def build(name: str, size: str = SMALL, device: str = "cpu") -> Workload:
    """Make the model ``name`` (of ``NAMES`` or ``PUBLISHED``) in one of ``SIZES``."""
    if name not in NAMES + PUBLISHED or size not in SIZES:
        raise ValueError(
            f"no model {name!r} of size {size!r}: names are "
            f"{', '.join(NAMES + PUBLISHED)}; sizes {', '.join(SIZES)}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    # Not before: what torchvision imports makes tensors and looks into them.
    with torch.device(device):
        workload = module.build(size)
    assert isinstance(workload, Workload)
    return workload


__all__ = [
    "CPU",
    "NAMES",
    "PUBLISHED",
    "REAL",
    "SIZES",
    "SMALL",
    "Training",
    "Workload",
    "build",
]
