"""Threads that wait for each other's locks, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import runs

pytestmark = runs.needs_gpu

# Where everybody is, should it hang. Threads change often.
PREAMBLE = """
import faulthandler, sys, threading, time
faulthandler.dump_traceback_later(60, exit=True)
import torch
import torch.cuda.remat as remat
from torch.cuda.remat import _testing

sys.setswitchinterval(1e-4)


def run(*functions):
    errors = []
    stop = time.monotonic() + 3

    def repeat(function):
        try:
            while time.monotonic() < stop and not errors:
                function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    print("all done")
"""


def _finishes(script: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTORCH_REMAT_SMALLEST": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "all done" in result.stdout


def test_memory_history_takes_no_stack_under_the_engines_lock() -> None:
    """A free's Python stack needs the interpreter lock, which a dying storage's
    thread may hold while it waits for the engine."""
    _finishes("""
torch.cuda.memory._record_memory_history(context="all", stacks="python")
remat.enable(device="cuda")
y = torch.randn(1000, device="cuda").tanh()
expected = y.clone()
x = torch.ones(1000, device="cuda", requires_grad=True)

def evict():
    _testing.evict(y)
    assert torch.equal(y, expected)

def drop():
    x.grad = torch.zeros(1000, device="cuda").exp()
    x.grad = None  # dies with the interpreter lock held

run(evict, drop)
# What the program frees itself has its own stack still.
z = torch.ones(1 << 20, device="cuda")
del z
events = torch.cuda.memory._snapshot()["device_traces"][0]
assert any(
    event["action"] == "free_requested" and event["size"] == 4 << 20 and event["frames"]
    for event in events
)
""")


@runs.needs_two_gpus
def test_replays_that_reach_each_others_devices() -> None:
    """Each op reads what is evicted on the other device, while the other's does."""
    _finishes("""
remat.enable(device="cuda:0")
remat.enable(device="cuda:1")
hidden = [torch.randn(64, device=f"cuda:{i}").tanh() for i in (0, 1)]

def reach(index):
    @torch.library.custom_op(f"threads::reach{index}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        time.sleep(1e-3)
        return x * hidden[1 - index].to(x.device)
    x = torch.ones(64, device=f"cuda:{index}")
    y = op(x)
    expected = y.clone()
    def again():
        _testing.evict(y)
        _testing.evict(hidden[index])
        assert torch.equal(y, expected)
    return again

run(reach(0), reach(1))
assert min(remat.stats(f"cuda:{i}").replays for i in (0, 1)) > 20
""")
