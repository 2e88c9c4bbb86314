"""ResNet (He et al., 2016), from torchvision; its real size is ResNet-50."""

from __future__ import annotations

import torch
from torchvision.models import resnet
from torchvision.models.resnet import Bottleneck

from ._workload import CPU, REAL, Workload, classify, image_batch, sgd


def build(size: str) -> Workload:
    if size == REAL:
        model, batch, side, classes = resnet.resnet50(), 256, 224, 1000
    elif size == CPU:
        model, batch, side, classes = resnet.resnet50(num_classes=10), 8, 96, 10
    else:
        model = resnet.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10)
        batch, side, classes = 4, 32, 10
    data = image_batch(batch, side, classes)
    dtype = None if size == CPU else torch.bfloat16
    return Workload(model, data, classify, sgd, dtype)
