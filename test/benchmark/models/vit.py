"""Vision transformer (Dosovitskiy et al., 2021), from torchvision; ViT-L/16."""

from __future__ import annotations

import torch
from torchvision.models.vision_transformer import VisionTransformer

from ._workload import CPU, REAL, Workload, classify, image_batch


def build(size: str) -> Workload:
    if size == REAL:
        model = VisionTransformer(224, 16, 24, 16, 1024, 4096)
        batch, side, classes = 128, 224, 1000
    elif size == CPU:
        model = VisionTransformer(64, 8, 8, 4, 256, 1024, num_classes=10)
        batch, side, classes = 16, 64, 10
    else:
        model = VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10)
        batch, side, classes = 4, 32, 10
    data = image_batch(batch, side, classes)
    return Workload(
        model, data, classify, dtype=None if size == CPU else torch.bfloat16
    )
