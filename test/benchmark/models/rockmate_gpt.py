"""The GPT for which Rockmate's planner was measured: 6 layers, width 256, 8 x 256."""

from __future__ import annotations

import torch
from torch import nn

from ._transformer import Block
from ._workload import Workload, predict_tokens, sgd, token_batch

SYMBOLS, TIME, WIDTH, HEADS, LAYERS, BATCH = 2048, 256, 256, 4, 6, 8


class GPT(nn.Module):
    """A language model without dropout; its output layer has weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(torch.zeros(TIME, WIDTH))
        self.blocks = nn.Sequential(
            *(Block(WIDTH, HEADS, 0.0, causal=True) for _ in range(LAYERS))
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.symbols(ids) + self.places
        return self.head(self.norm(self.blocks(x)))


def build(size: str) -> Workload:
    return Workload(GPT(), token_batch(BATCH, TIME, SYMBOLS), predict_tokens, sgd)
