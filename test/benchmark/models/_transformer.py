"""The blocks that the transformers here are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.project(y.transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Sequential):
    """Two layers, applied at each place."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )


class Block(nn.Module):
    """Attention, then ``mix`` at each place; norms come before or after both."""

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        *,
        causal: bool = False,
        norm_first: bool = True,
        mix: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attention(width, heads, dropout, causal)
        self.mix = FeedForward(width) if mix is None else mix
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in zip(self.norms, (self.attention, self.mix)):
            if self.norm_first:
                x = x + self.dropout(part(norm(x)))
            else:
                x = norm(x + self.dropout(part(x)))
        return x


class Embedding(nn.Module):
    """Symbols and their places."""

    def __init__(self, symbols: int, time: int, width: int, dropout: float) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Embedding(time, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.symbols(ids) + self.places(places))
