"""Inception-V3 (Szegedy et al., 2016), from torchvision."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import inception_v3

from ._workload import REAL, Batch, Workload, image_batch, sgd


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    images, classes = batch
    outputs = module(images)  # the classifier's and the auxiliary classifier's
    loss = nn.functional.cross_entropy(outputs.logits, classes)
    return loss + 0.4 * nn.functional.cross_entropy(outputs.aux_logits, classes)


def build(size: str) -> Workload:
    # The auxiliary classifier takes no smaller images.
    side = 299
    batch, classes = (256, 1000) if size == REAL else (2, 10)
    model = inception_v3(num_classes=classes, aux_logits=True, init_weights=False)
    data = image_batch(batch, side, classes)
    dtype = torch.bfloat16 if size == REAL else None
    return Workload(model, data, _loss, sgd, dtype)
