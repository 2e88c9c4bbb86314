"""DenseNet (Huang et al., 2017), from torchvision; its real size is DenseNet-121."""

from __future__ import annotations

import torch
from torchvision.models import densenet

from ._workload import CPU, REAL, Workload, classify, image_batch, sgd


def build(size: str) -> Workload:
    if size == REAL:
        model, batch, side, classes = densenet.densenet121(), 128, 224, 1000
    elif size == CPU:
        model = densenet.DenseNet(16, (6, 8, 6), 32, num_classes=10)
        batch, side, classes = 24, 96, 10
    else:
        model = densenet.DenseNet(8, (2, 2), 16, num_classes=10)
        batch, side, classes = 4, 32, 10
    data = image_batch(batch, side, classes)
    dtype = None if size == CPU else torch.bfloat16
    return Workload(model, data, classify, sgd, dtype)
