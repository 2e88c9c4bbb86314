"""Binary TreeLSTM (Tai et al., 2015), node by node over the tree it is given."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ._workload import CPU, REAL, Batch, Workload, adamw

State = tuple[torch.Tensor, torch.Tensor]


def _half(leaves: int) -> int:
    return leaves // 2


class TreeLSTM(nn.Module):
    """Classifies the root.

    ``share`` says how many of the leaves are on a node's left, and so gives the tree
    its shape. A subtree of up to ``segment`` leaves is one call of ``subtree``, the
    unit of checkpointing here.
    """

    segment = 0

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

    def subtree(
        self, symbols: tuple[torch.Tensor, ...], share: Callable[[int], int]
    ) -> State:
        """Return the state of the root over ``symbols``."""
        return self._tree(symbols, share, 0)

    def _tree(
        self,
        symbols: tuple[torch.Tensor, ...],
        share: Callable[[int], int],
        segment: int,
    ) -> State:
        if len(symbols) == 1:
            hidden, cell = self.leaf(symbols[0]).chunk(2, 1)
            return torch.tanh(hidden), cell
        if len(symbols) <= segment:
            return self.subtree(symbols, share)
        left = share(len(symbols))
        return self._combine(
            self._tree(symbols[:left], share, segment),
            self._tree(symbols[left:], share, segment),
        )

    def forward(
        self, ids: torch.Tensor, share: Callable[[int], int] = _half
    ) -> torch.Tensor:
        symbols = self.symbols(ids).unbind(1)
        return self.head(self._tree(symbols, share, self.segment)[0])


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    *inputs, classes = batch
    return F.cross_entropy(module(*inputs), classes)


def build(size: str) -> Workload:
    if size == REAL:
        symbols, width, leaves, batch = 20000, 1024, 64, 1024
    elif size == CPU:
        symbols, width, leaves, batch = 2048, 256, 64, 64
    else:
        symbols, width, leaves, batch = 64, 16, 8, 4

    def make_batch() -> Batch:
        ids = torch.randint(symbols, (batch, leaves))
        return ids, torch.randint(5, (batch,))

    return Workload(TreeLSTM(symbols, width, 5), make_batch, _loss, adamw)
