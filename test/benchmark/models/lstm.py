"""A word-level LSTM language model (Zaremba et al., 2014), unrolled step by step.

Written with cells, as models with attention or zoneout between steps have to be;
cuDNN's layer would be one operator for all steps.
"""

from __future__ import annotations

import torch
from torch import nn

from ._workload import CPU, REAL, Workload, predict_tokens, token_batch

State = tuple[torch.Tensor, torch.Tensor]


class LSTM(nn.Module):
    """Layers of cells, with dropout between them.

    ``segment`` steps are one call of ``advance``, the unit of checkpointing here.
    """

    segment = 1 << 30

    def __init__(self, symbols: int, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.symbols = nn.Embedding(symbols, width)
        self.cells = nn.ModuleList([nn.LSTMCell(width, width) for _ in range(layers)])
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(width, symbols)

    def advance(
        self, steps: tuple[torch.Tensor, ...], states: list[State]
    ) -> tuple[list[torch.Tensor], list[State]]:
        """Return the outputs of these steps and the states after them."""
        states, outputs = list(states), []
        for x in steps:
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, states[layer])
                x = self.dropout(states[layer][0])
            outputs.append(x)
        return outputs, states

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        steps = self.dropout(self.symbols(ids)).unbind(1)
        zeros = steps[0].new_zeros(ids.shape[0], self.width)
        states = [(zeros, zeros) for _ in self.cells]
        outputs: list[torch.Tensor] = []
        for i in range(0, len(steps), self.segment):
            more, states = self.advance(steps[i : i + self.segment], states)
            outputs += more
        return self.head(torch.stack(outputs, 1))


def build(size: str) -> Workload:
    if size == REAL:
        symbols, width, layers, batch, time = 10000, 1500, 2, 512, 128
    elif size == CPU:
        symbols, width, layers, batch, time = 2048, 256, 2, 32, 64
    else:
        symbols, width, layers, batch, time = 64, 16, 2, 4, 8
    model = LSTM(symbols, width, layers)
    return Workload(model, token_batch(batch, time, symbols), predict_tokens)
