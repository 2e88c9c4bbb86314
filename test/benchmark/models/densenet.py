"""DenseNet (Huang et al., 2017), from torchvision; its real size is DenseNet-121."""

from __future__ import annotations

import torch
from torchvision.models import densenet

from ._workload import REAL, Workload, classify, image_batch, sgd


def build(size: str) -> Workload:
    if size == REAL:
        model, batch, side, classes = densenet.densenet121(), 128, 224, 1000
    else:
        model = densenet.DenseNet(8, (2, 2), 16, num_classes=10)
        batch, side, classes = 4, 32, 10
    data = image_batch(batch, side, classes)
    return Workload(model, data, classify, sgd, torch.bfloat16)
