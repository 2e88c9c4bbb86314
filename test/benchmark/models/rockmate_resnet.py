"""The ResNet for which Rockmate's planner was measured: ResNet-50's shape, width 16."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ._workload import Workload, classify, image_batch, sgd

WIDTH, LAYERS, CLASSES, BATCH, SIDE = 16, (3, 4, 6, 3), 10, 32, 32


class Bottleneck(nn.Module):
    """Three convolutions beside a connection that skips them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(inputs, width, 1, bias=False),
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.Conv2d(width, outputs, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (width, width, outputs)])
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for convolution, norm in zip(self.convolutions[:2], self.norms[:2]):
            y = F.relu(norm(convolution(y)))
        return F.relu(self.norms[2](self.convolutions[2](y)) + self.skip(x))


class ResNet(nn.Module):
    """A stem for small images, then bottlenecks; no operator works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
        )
        inputs, blocks = WIDTH, []
        for stage, count in enumerate(LAYERS):
            width = WIDTH << stage
            for i in range(count):
                stride = 2 if stage and i == 0 else 1
                blocks.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def build(size: str) -> Workload:
    return Workload(ResNet(), image_batch(BATCH, SIDE, CLASSES), classify, sgd)
