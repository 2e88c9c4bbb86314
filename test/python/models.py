"""Small models and training loops that the tests share. They know nothing of remat."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def deep_mlp(
    depth: int = 6, width: int = 64, activation: type[nn.Module] = nn.Tanh
) -> nn.Sequential:
    """A chain of linear layers and activations."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers)


def conv_net(channels: int = 8, *, dropout: float = 0.2) -> nn.Sequential:
    """Convolutions with batch norm, in-place activations and dropout."""

    def block(inputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
        ]

    return nn.Sequential(
        *block(3), *block(channels), *block(channels), nn.Flatten(), nn.LazyLinear(4)
    )


def transformer(width: int = 32, layers: int = 2, *, dropout: float = 0.1) -> nn.Module:
    """A small stack of encoder layers."""
    layer = nn.TransformerEncoderLayer(
        width, 2, 2 * width, dropout=dropout, batch_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def state(module: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """Parameters, gradients and buffers of a module."""
    parameters = dict(module.named_parameters())
    gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}
    return {
        "parameters": {n: p.detach() for n, p in parameters.items()},
        "gradients": gradients,
        "buffers": dict(module.named_buffers()),
    }


def train(
    module: nn.Module,
    batch: Callable[[], torch.Tensor],
    *,
    steps: int = 3,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **options: object,
) -> dict[str, object]:
    """Train on the mean square of the output; returns losses and the final state."""
    module(batch())  # lazy modules become real
    stepper = optimizer(module.parameters(), lr=1e-2, **options)
    losses = []
    for _ in range(steps):
        loss = module(batch()).square().mean()
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.detach())
    return {"losses": losses, **state(module)}
