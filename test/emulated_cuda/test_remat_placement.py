"""Where a plan puts what it keeps."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.cuda import remat

from emulated_runtime import emulated

ROWS, WIDTH = 8192, 4096
# A sine of so many halves at an H100's bandwidth, read and written.
SINE_NS = 2 * 2 * ROWS * WIDTH / 3350e9 * 1e9


class _Stage(nn.Module):
    """Saves two activations of one size: a dear one, then a cheap one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin()


@emulated(gpu="h100-80gb", timing=1)
def test_dear_neighbors_stay_when_a_large_block_is_needed() -> None:
    """In the order of their making, dear and cheap values alternate.

    Any four neighbors are two of each.
    """
    net = nn.Sequential(*(_Stage() for _ in range(16))).cuda().half()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    batch = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.float16)

    def step() -> None:
        result = net(batch)
        large = torch.cat([result] * 4)
        optimizer.zero_grad()
        large.square().sum().backward()
        del result, large
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    remat.enable(held + (peak - held) * 3 // 5)
    for number in range(14):  # of which some are a trial without
        remat.reset_stats()
        step()
        torch.cuda.synchronize()
        stats = remat.stats()
        if number >= 11:
            assert stats.plan_in_use is not None
            assert stats.replays > 0
            assert stats.max_replay_depth == 1
            assert abs(stats.recompute_ns / stats.replays - SINE_NS) < 100
        while remat.stats().plan_search:
            time.sleep(0.01)
