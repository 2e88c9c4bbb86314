"""U-Net (Ronneberger et al., 2015), with batch norm and padded convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ._workload import CPU, REAL, Batch, Workload, sgd


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down ``depth`` times and up again, with what was there on the way down."""

    def __init__(self, channels: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [channels << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            [_double(3, channels)] + [_double(a, b) for a, b in zip(widths, widths[1:])]
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs]
        )
        self.up = nn.ModuleList([_double(a, b) for a, b in pairs])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            skipped.append(x)
        skipped.pop()
        for grow, up in zip(self.grow, self.up):
            x = up(torch.cat([skipped.pop(), grow(x)], 1))
        return self.head(x)


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    images, classes = batch
    return F.cross_entropy(module(images), classes)


def build(size: str) -> Workload:
    if size == REAL:
        channels, depth, classes, batch, side = 64, 4, 21, 16, 512
    elif size == CPU:
        channels, depth, classes, batch, side = 16, 3, 3, 8, 96
    else:
        channels, depth, classes, batch, side = 8, 2, 3, 2, 32

    def make_batch() -> Batch:
        images = torch.randn(batch, 3, side, side)
        return images, torch.randint(classes, (batch, side, side))

    model = UNet(channels, depth, classes)
    dtype = None if size == CPU else torch.bfloat16
    return Workload(model, make_batch, _loss, sgd, dtype)
