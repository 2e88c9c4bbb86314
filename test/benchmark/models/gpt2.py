"""GPT-2 (Radford et al., 2019); its real size is GPT-2 XL."""

from __future__ import annotations

import torch
from torch import nn

from ._transformer import Block, Embedding
from ._workload import CPU, REAL, Workload, predict_tokens, token_batch


class GPT2(nn.Module):
    """A language model whose output layer shares the embedding's weights."""

    def __init__(
        self, symbols: int, time: int, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = Embedding(symbols, time, width, 0.1)
        self.blocks = nn.Sequential(
            *(Block(width, heads, 0.1, causal=True) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.embedding.symbols.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids))))


def build(size: str) -> Workload:
    if size == REAL:
        symbols, time, width, heads, layers, batch = 50257, 1024, 1600, 25, 48, 8
    elif size == CPU:
        symbols, time, width, heads, layers, batch = 2048, 128, 256, 4, 8, 4
    else:
        symbols, time, width, heads, layers, batch = 64, 32, 32, 4, 2, 4
    return Workload(
        GPT2(symbols, time, width, heads, layers),
        token_batch(batch, time, symbols),
        predict_tokens,
        dtype=None if size == CPU else torch.bfloat16,
    )
