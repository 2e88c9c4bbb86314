"""BERT (Devlin et al., 2019) as it is pretrained; its real size is BERT-large."""

from __future__ import annotations

import torch
from torch import nn

from ._transformer import Block, Embedding
from ._workload import CPU, REAL, Workload, predict_tokens, token_batch


class Bert(nn.Module):
    """A masked language model."""

    def __init__(
        self, symbols: int, time: int, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = Embedding(symbols, time, width, 0.1)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, 0.1, norm_first=False) for _ in range(layers))
        )
        self.head = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, symbols),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.norm(self.embedding(ids))))


def build(size: str) -> Workload:
    if size == REAL:
        symbols, time, width, heads, layers, batch = 30522, 512, 1024, 16, 24, 64
    elif size == CPU:
        symbols, time, width, heads, layers, batch = 2048, 128, 256, 4, 8, 4
    else:
        symbols, time, width, heads, layers, batch = 64, 32, 32, 4, 2, 4
    return Workload(
        Bert(symbols, time, width, heads, layers),
        token_batch(batch, time, symbols),
        predict_tokens,
        dtype=None if size == CPU else torch.bfloat16,
    )
