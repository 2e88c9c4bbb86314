"""Two ordinary models and their data. Nothing here knows of rematerialization."""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data import topics

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Block(nn.Module):
    """A transformer block: causal attention and a two-layer network."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, time, width)
        x = x + self.dropout(self.project(y))
        y = F.gelu(self.expand(self.norm_2(x)))
        return x + self.dropout(self.contract(y))


class SmallGPT(nn.Module):
    """A character-level GPT."""

    def __init__(
        self,
        symbols: int,
        *,
        time: int = 128,
        width: int = 128,
        heads: int = 4,
        layers: int = 8,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Embedding(time, width)
        self.blocks = nn.ModuleList(
            [Block(width, heads, dropout) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.symbols(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def conv_block(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two convolutions with batch norm, and dropout."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
    )


class ConvNet(nn.Module):
    """A convolutional network for the 8 by 8 digits."""

    def __init__(
        self, *, channels: int = 32, blocks: int = 5, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            conv_block(1, channels, dropout),
            *[conv_block(channels, channels, dropout) for _ in range(blocks - 1)],
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(images).mean((2, 3)))


class Training:
    """A model, its optimizer and its batches: one call is one step."""

    def __init__(
        self, model: nn.Module, loss_of_batch: Callable[[nn.Module], torch.Tensor]
    ) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self._loss_of_batch = loss_of_batch

    def step(self) -> float:
        """Train on the next batch; returns its loss."""
        loss = self._loss_of_batch(self.model)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def gpt(batch: int = 32, time: int = 128) -> Training:
    """A GPT on the texts of Python's own help."""
    text = "".join(topics.topics.values())
    alphabet = sorted(set(text))
    number = {symbol: i for i, symbol in enumerate(alphabet)}
    ids = torch.tensor([number[symbol] for symbol in text])

    def loss_of_batch(model: nn.Module) -> torch.Tensor:
        starts = torch.randint(len(ids) - time, (batch,))
        x = torch.stack([ids[s : s + time] for s in starts])
        y = torch.stack([ids[s + 1 : s + time + 1] for s in starts])
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return Training(SmallGPT(len(alphabet), time=time), loss_of_batch)


def digits(batch: int = 512) -> Training:
    """A convolutional network on scikit-learn's handwritten digits."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)

    def loss_of_batch(model: nn.Module) -> torch.Tensor:
        chosen = torch.randint(len(images), (batch,))
        return F.cross_entropy(model(images[chosen]), labels[chosen])

    return Training(ConvNet(), loss_of_batch)


MODELS = {"gpt": gpt, "conv": digits}
