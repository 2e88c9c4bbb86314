"""A language model with mixtures of experts (GShard, Lepikhin et al., 2021).

Each expert takes up to its capacity of tokens, first come first served; a token beyond
it skips the layer. So shapes do not depend on where the tokens go.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ._transformer import Block, Embedding
from ._workload import CPU, REAL, Workload, predict_tokens, token_batch


class Experts(nn.Module):
    """The ``top`` best of ``experts`` two-layer networks for each token."""

    def __init__(self, width: int, experts: int, top: int) -> None:
        super().__init__()
        self.experts = experts
        self.top = top
        self.router = nn.Linear(width, experts, bias=False)
        scale = width**-0.5
        self.expand = nn.Parameter(torch.randn(experts, width, 4 * width) * scale)
        self.contract = nn.Parameter(torch.randn(experts, 4 * width, width) * scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        count, width = tokens.shape
        capacity = math.ceil(1.25 * self.top * count / self.experts)
        gates = F.softmax(self.router(tokens).float(), -1)
        weights, chosen = gates.topk(self.top, -1)
        chosen = chosen.flatten()
        # How many before it chose the same expert.
        taken = F.one_hot(chosen, self.experts)
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        overflow = self.experts * capacity  # a place that nobody reads
        slot = torch.where(place < capacity, chosen * capacity + place, overflow)

        copies = tokens.repeat_interleave(self.top, 0)
        inputs = tokens.new_zeros(overflow + 1, width).index_copy(0, slot, copies)
        batches = inputs[:-1].view(self.experts, capacity, width)
        hidden = F.gelu(torch.bmm(batches, self.expand))
        outputs = torch.bmm(hidden, self.contract).flatten(0, 1)
        outputs = torch.cat([outputs, outputs.new_zeros(1, width)])
        mixed = outputs[slot] * weights.flatten().unsqueeze(-1)
        return mixed.view(count, self.top, width).sum(1).view(x.shape).to(x.dtype)


class MixtureOfExperts(nn.Module):
    """A transformer in which every second block has experts."""

    def __init__(
        self,
        symbols: int,
        time: int,
        width: int,
        heads: int,
        layers: int,
        experts: int,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(symbols, time, width, 0.1)
        self.blocks = nn.Sequential(
            *(
                Block(
                    width,
                    heads,
                    0.1,
                    causal=True,
                    mix=Experts(width, experts, 2) if layer % 2 else None,
                )
                for layer in range(layers)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids))))


def build(size: str) -> Workload:
    if size == REAL:
        symbols, time, width, heads, layers, experts = 32000, 1024, 768, 12, 12, 16
        batch = 16
    elif size == CPU:
        symbols, time, width, heads, layers, experts = 2048, 128, 192, 4, 6, 4
        batch = 4
    else:
        symbols, time, width, heads, layers, experts = 64, 16, 32, 4, 2, 4
        batch = 4
    return Workload(
        MixtureOfExperts(symbols, time, width, heads, layers, experts),
        token_batch(batch, time, symbols),
        predict_tokens,
        dtype=None if size == CPU else torch.bfloat16,
    )
