"""Binary TreeLSTM (Tai et al., 2015) over complete binary trees, node by node."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ._workload import REAL, Batch, Workload, adamw

State = tuple[torch.Tensor, torch.Tensor]


class TreeLSTM(nn.Module):
    """Classifies the root; the leaves are symbols in heap order."""

    def __init__(self, symbols: int, width: int, classes: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.leaf = nn.Linear(width, 2 * width)
        self.node = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, classes)

    def _combine(self, left: State, right: State) -> State:
        gates = self.node(torch.cat([left[0], right[0]], 1))
        i, f_left, f_right, o, u = gates.chunk(5, 1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        cell = cell + torch.sigmoid(f_left) * left[1]
        cell = cell + torch.sigmoid(f_right) * right[1]
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        level: list[State] = []
        for symbol in self.symbols(ids).unbind(1):
            hidden, cell = self.leaf(symbol).chunk(2, 1)
            level.append((torch.tanh(hidden), cell))
        while len(level) > 1:
            level = [self._combine(a, b) for a, b in zip(level[::2], level[1::2])]
        return self.head(level[0][0])


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    ids, classes = batch
    return F.cross_entropy(module(ids), classes)


def build(size: str) -> Workload:
    if size == REAL:
        symbols, width, leaves, batch = 20000, 1024, 64, 1024
    else:
        symbols, width, leaves, batch = 64, 16, 8, 4

    def make_batch() -> Batch:
        ids = torch.randint(symbols, (batch, leaves))
        return ids, torch.randint(5, (batch,))

    return Workload(TreeLSTM(symbols, width, 5), make_batch, _loss, adamw)
