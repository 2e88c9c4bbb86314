"""ResNet (He et al., 2016), from torchvision; its real size is ResNet-50."""

from __future__ import annotations

import torch
from torchvision.models import resnet
from torchvision.models.resnet import Bottleneck

from ._workload import REAL, Workload, classify, image_batch, sgd


def build(size: str) -> Workload:
    if size == REAL:
        model, batch, side, classes = resnet.resnet50(), 256, 224, 1000
    else:
        model = resnet.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10)
        batch, side, classes = 4, 32, 10
    data = image_batch(batch, side, classes)
    return Workload(model, data, classify, sgd, torch.bfloat16)
