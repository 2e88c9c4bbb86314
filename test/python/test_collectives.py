"""Collectives of two processes whose tensors are evicted after each op."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed

import runs

SCRIPT = textwrap.dedent(
    """
    import os
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional as differentiable
    import torch.multiprocessing
    from torch.cuda import remat

    def compute(rank, device):
        torch.manual_seed(0)
        torch.set_default_device(device)
        results = []
        y, z = torch.randn(64, 64).tanh(), torch.randn(64, 64).sin()
        pending = [
            dist.isend(y.cos(), 1 - rank),
            dist.all_reduce(y.exp(), async_op=True),
        ]
        received = torch.empty(64, 64)
        dist.recv(received, 1 - rank)
        for work in pending:
            work.wait()
        results.append(received.sin())
        part = torch.empty(64, 64)
        dist.scatter(part, [y.sin(), z.cos()] if rank == 0 else None)
        results.append(part.sin())
        gathered = [torch.ones(64, 64).mul(0) for _ in range(2)]
        dist.all_gather(gathered, z.exp())
        results += gathered
        dist.all_reduce(z)
        dist.broadcast(y, 1)
        results += [y.sin(), z.sin()]
        x = torch.randn(64, 64, requires_grad=True)
        differentiable.all_reduce(x.tanh()).sin().sum().backward()
        results.append(x.grad)
        objects = [None, None]
        dist.all_gather_object(objects, y.sin())
        return [t.clone() for t in results + objects]

    def run(rank, port, device):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        dist.init_process_group("gloo", rank=rank, world_size=2)
        expected = compute(rank, device)
        os.environ["PYTORCH_REMAT_CHAOS"] = "1"
        remat.enable(device=device)
        found = compute(rank, device)
        assert remat.stats(device).replays > 0
        remat.disable()
        same = [torch.equal(a, b) for a, b in zip(expected, found)]
        assert all(same), same
        dist.destroy_process_group()

    if __name__ == "__main__":
        import sys
        torch.multiprocessing.spawn(run, args=tuple(sys.argv[1:]), nprocs=2)
    """
)


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this torch was built without Gloo",
)
def test_collectives_of_evicted_tensors(tmp_path: pathlib.Path, device: str):
    script = tmp_path / "collectives.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.run(
        [sys.executable, str(script), str(port), device],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stderr[-4000:]


def test_tensors_of_a_collective_stay_where_they_are(remat, device):
    """What uses them may go on after the op has returned."""
    seen = []
    with torch.library._scoped_library("c10d", "FRAGMENT") as library:
        library.define("remat_test(Tensor x) -> ()")
        library.impl(
            "remat_test",
            lambda x: seen.append(x.data_ptr()),
            "CompositeExplicitAutograd",
        )
        x = torch.randn(64, 64, device=device)
        y = x.tanh()
        torch.cuda.remat._testing.evict(y)
        replays = remat.stats(device).replays
        with runs.chaos_mode():
            remat.enable(device=device)
        torch.ops.c10d.remat_test(y)
    assert remat.stats(device).replays == replays + 1
    assert seen == [y.data_ptr()]
