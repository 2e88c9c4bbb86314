"""Graph convolutional network (Kipf and Welling, 2017) on a list of edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ._workload import CPU, REAL, Batch, Workload, adamw


class Convolution(nn.Module):
    """Each node gets the mean of its neighbors, transformed, and itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbors = nn.Linear(inputs, outputs, bias=False)
        self.own = nn.Linear(inputs, outputs)

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor, degree: torch.Tensor
    ) -> torch.Tensor:
        source, target = edges
        messages = self.neighbors(x).index_select(0, source)
        total = messages.new_zeros(x.shape[0], messages.shape[1])
        total = total.index_add(0, target, messages)
        return total / degree.unsqueeze(1) + self.own(x)


class GCN(nn.Module):
    """Convolutions with dropout between them."""

    def __init__(self, inputs: int, width: int, classes: int, layers: int) -> None:
        super().__init__()
        widths = [inputs] + [width] * (layers - 1) + [classes]
        self.layers = nn.ModuleList(
            [Convolution(a, b) for a, b in zip(widths, widths[1:])]
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(edges.shape[1], device=x.device)
        degree = torch.ones(x.shape[0], device=x.device).index_add(0, edges[1], ones)
        for layer in self.layers[:-1]:
            x = self.dropout(F.relu(layer(x, edges, degree)))
        return self.layers[-1](x, edges, degree)


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    nodes, edges, classes = batch
    return F.cross_entropy(module(nodes, edges), classes)


def build(size: str) -> Workload:
    # About the size of ogbn-arxiv.
    if size == REAL:
        nodes, edges, inputs, width, classes, layers = 169343, 1166243, 128, 256, 40, 8
    elif size == CPU:
        nodes, edges, inputs, width, classes, layers = 8000, 48000, 128, 128, 40, 8
    else:
        nodes, edges, inputs, width, classes, layers = 50, 200, 8, 16, 4, 3

    def make_batch() -> Batch:
        return (
            torch.randn(nodes, inputs),
            torch.randint(nodes, (2, edges)),
            torch.randint(classes, (nodes,)),
        )

    return Workload(GCN(inputs, width, classes, layers), make_batch, _loss, adamw)
