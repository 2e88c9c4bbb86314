"""Run PyTorch's OpInfo entries plainly and under chaos, and compare bit for bit.

Each input is first sent through a recorded op, so that inputs themselves are evicted
and replayed; then the op runs as a function, in place and with ``out=``, forward and
backward. All of it::

    python test/python/opinfo_sweep.py

One entry, with the differences::

    python test/python/opinfo_sweep.py --only nn.functional.conv2d

``--device cuda`` does so on a GPU, or on an emulated one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "complex64",
    "complex128",
    "int64",
    "int32",
    "uint8",
    "bool",
)
QUIET_S = 300  # no entry may be silent for longer

# Ops whose results hold whatever the memory held before: nothing can be compared but
# their shapes, strides and types. An op belongs here only if upstream documents its
# contents as uninitialized.
UNDEFINED = {
    "empty": "returns uninitialized memory",
    "empty_like": "returns uninitialized memory",
    "empty_permuted": "returns uninitialized memory",
    "empty_strided": "returns uninitialized memory",
    "new_empty": "returns uninitialized memory",
    "new_empty_strided": "returns uninitialized memory",
    "resize_": "elements added by a resize are uninitialized",
    "resize_as_": "elements added by a resize are uninitialized",
}
# Ops that differ from themselves without remat, in a process that never enabled it:
# their shapes, strides and types are compared, and their bytes may be equal or not.
NOT_DETERMINISTIC = {
    "linalg.lstsq": "plain runs differ in the last bits as the heap's layout changes",
}


# --- worker: one process that runs entries named on its standard input -----------


class _Entry:
    """One op with one dtype: its samples, run in three variants."""

    def __init__(self, op: object, dtype: str, most: int, device: str) -> None:
        import torch

        self.op = op
        self.device = device
        self.dtype = getattr(torch, dtype)
        self.samples = self._make_samples(most)

    def _make_samples(self, most: int) -> list[object]:
        import torch

        backward = self.op.supports_autograd and self.dtype in (
            self.op.supported_backward_dtypes(self.device)
        )
        torch.manual_seed(0)
        made = self.op.sample_inputs(self.device, self.dtype, requires_grad=backward)
        # Spread over all samples: the interesting ones are often the last.
        samples = list(made)
        if len(samples) <= most:
            return samples
        step = len(samples) / most
        return [samples[int(i * step)] for i in range(most)]

    def evaluate(self) -> list[dict[str, object]]:
        """Run every sample in every variant; returns snapshots or errors."""
        return [
            self._attempt(variant, sample)
            for i, sample in enumerate(self.samples)
            for variant in self._variants(i)
        ]

    def _variants(self, index: int) -> list[Callable[[object], object]]:
        variants = [self._forward_backward]
        if index < 3 and self.op.inplace_variant is not None:
            variants.append(self._in_place)
        if index < 3 and self.op.supports_out:
            variants.append(self._out)
        return variants

    def _attempt(
        self, variant: Callable[[object], object], sample: object
    ) -> dict[str, object]:
        import torch

        import snapshots

        torch.manual_seed(1)
        try:
            found = variant(sample)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        # Drawn last: a stream that a replay moved shows here.
        drawn = torch.rand(2), torch.rand(2, device=self.device)
        found = {"variant": variant.__name__, "found": found, "next": drawn}
        return snapshots.snapshot(found)

    def _place(self, value: object, leaves: list[object]) -> object:
        import torch

        if isinstance(value, torch.Generator):
            return torch.Generator(value.device).set_state(value.get_state())
        if not isinstance(value, torch.Tensor):
            return value
        leaf = value.detach().clone()
        if value.requires_grad:
            leaf.requires_grad_()
            leaves.append(leaf)
        return leaf.clone()

    def _inputs(self, sample: object) -> tuple[object, tuple, dict, list]:
        from torch.utils import _pytree as pytree

        leaves: list[object] = []
        placed = pytree.tree_map(
            lambda value: self._place(value, leaves),
            (sample.input, tuple(sample.args), dict(sample.kwargs)),
        )
        return (*placed, leaves)

    def _forward_backward(self, sample: object) -> object:
        import torch
        from torch.utils import _pytree as pytree

        x, args, kwargs, leaves = self._inputs(sample)
        out = self.op(x, *args, **kwargs)
        found = {"out": out, "inputs": (x, args, kwargs), "gradients": []}
        if not leaves:
            return found
        processed = sample.output_process_fn_grad(out)
        roots = [
            t if t.layout == torch.strided else t.to_dense()
            for t in pytree.tree_leaves(processed)
            if isinstance(t, torch.Tensor) and t.requires_grad
        ]
        if roots:
            weights = [
                torch.linspace(0.5, 1.5, t.numel())
                .reshape(t.shape)
                .to(t.device, t.dtype)
                for t in roots
            ]
            found["gradients"] = torch.autograd.grad(
                roots, leaves, weights, allow_unused=True
            )
        return found

    def _in_place(self, sample: object) -> object:
        from torch.utils import _pytree as pytree

        x, args, kwargs, _ = self._inputs(sample)
        out = self.op.inplace_variant(x, *args, **kwargs)
        late = pytree.tree_map(lambda t: t.detach().clone(), out)
        return {"out": out, "late": late, "inputs": (x, args, kwargs)}

    def _out(self, sample: object) -> object:
        import torch
        from torch.utils import _pytree as pytree

        with torch.no_grad():
            x, args, kwargs, _ = self._inputs(sample)
            expected = self.op(x, *args, **kwargs)
            out = pytree.tree_map(
                lambda t: torch.zeros_like(t) if isinstance(t, torch.Tensor) else t,
                expected,
            )
            if isinstance(out, list):
                out = tuple(out)
            self.op(x, *args, **kwargs, out=out)
        return {"out": out}


@contextlib.contextmanager
def _chaos(device: str) -> Iterator[None]:
    import torch.cuda.remat as remat

    import runs

    with runs.chaos_mode():
        remat.enable(device=device)
    try:
        yield
    finally:
        remat.disable()


def _check(op: object, dtype: str, most: int, device: str) -> dict[str, object]:
    """Run one entry; returns its line of the report."""
    import torch.cuda.remat as remat
    from torch.cuda.remat import _testing

    import snapshots

    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    report: dict[str, object] = {"entry": name, "dtype": dtype}
    try:
        entry = _Entry(op, dtype, most, device)
    except Exception as error:
        return {**report, "verdict": "no samples", "reason": f"{error}"}
    if not entry.samples:
        return {**report, "verdict": "no samples", "reason": "upstream has none"}
    plain = entry.evaluate()
    report["runs"] = len(plain)
    report["errors"] = sum("['found']['error']" in run for run in plain)
    with _chaos(device):
        remat.reset_stats(device)
        chaos = entry.evaluate()
        _testing.check_invariants()
        stats = remat.stats(device)
    report["replays"] = stats.replays
    report["evictions"] = stats.evictions

    def compare(*, data: bool) -> list[str]:
        return [
            f"run {i}: {line}"
            for i, (x, y) in enumerate(zip(plain, chaos))
            for line in snapshots.differences(x, y, compare_data=data)
        ]

    if op.name in UNDEFINED and not compare(data=False):
        return {**report, "verdict": "excepted", "reason": UNDEFINED[op.name]}
    lines = compare(data=True)
    if not lines:
        return {**report, "verdict": "equal"}
    if op.name in NOT_DETERMINISTIC and not compare(data=False):
        return {**report, "verdict": "excepted", "reason": NOT_DETERMINISTIC[op.name]}
    return {**report, "verdict": "different", "reason": "; ".join(lines[:6])}


def _table() -> list[object]:
    """Upstream's table of ops, and its tables of ops on lists of tensors."""
    from torch.testing._internal import common_methods_invocations as upstream

    return [
        *upstream.op_db,
        *upstream.foreach_unary_op_db,
        *upstream.foreach_binary_op_db,
        *upstream.foreach_pointwise_op_db,
        *upstream.foreach_reduce_op_db,
        *upstream.foreach_other_op_db,
    ]


def _work(device: str) -> None:
    """Answer each ``index dtype most`` line with one line of JSON."""
    sys.path.insert(0, str(HERE))
    sys.argv = sys.argv[:1]  # upstream's test modules read the command line
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    ops = _table()
    print(json.dumps({"ready": len(ops)}), flush=True)
    for line in sys.stdin:
        index, dtype, most = line.split()
        op = ops[int(index)]
        if getattr(torch, dtype) not in op.supported_dtypes(device):
            report = {"entry": op.name, "dtype": dtype, "verdict": "unsupported"}
        else:
            try:
                report = _check(op, dtype, int(most), device)
            except BaseException as error:
                report = {"entry": op.name, "dtype": dtype, "verdict": "different"}
                report["reason"] = f"{type(error).__name__}: {error}"
        print(json.dumps(report), flush=True)


# --- parent: hands entries to workers, survives their crashes --------------------


class _Worker:
    """A worker process and the lines it answers, with a limit on its silence."""

    def __init__(self, device: str) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.entries = int(self._answer().get("ready", 0))

    def ask(self, index: int, dtype: str, most: int) -> dict[str, object]:
        """Run one entry; a crash or silence is its verdict."""
        try:
            self._process.stdin.write(f"{index} {dtype} {most}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"verdict": "crashed", "reason": "the worker had ended"}
        return self._answer()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put("")

    def _answer(self) -> dict[str, object]:
        try:
            line = self._lines.get(timeout=QUIET_S)
        except queue.Empty:
            self.close()
            return {"verdict": "crashed", "reason": f"no answer in {QUIET_S} s"}
        if line:
            return json.loads(line)
        code = self._process.wait()
        return {"verdict": "crashed", "reason": f"the worker ended with {code}"}


def sweep(
    *,
    every: int = 1,
    dtypes: Sequence[str] = DTYPES,
    most_samples: int = 1000,
    jobs: int = 2,
    only: str = "",
    device: str = "cpu",
    progress: Callable[[dict[str, object]], None] = lambda report: None,
) -> list[dict[str, object]]:
    """Check every ``every``-th op with each dtype; returns one report per entry."""
    names = _names()
    tasks = [
        (index, dtype)
        for index, name in enumerate(names)
        for dtype in dtypes
        if (only in (name, name.split(".variant:")[0]) if only else index % every == 0)
    ]
    todo: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    reports: list[dict[str, object]] = []

    def drain() -> None:
        worker = _Worker(device)
        while True:
            try:
                index, dtype = todo.get_nowait()
            except queue.Empty:
                break
            if not worker.is_alive:
                worker = _Worker(device)
            report = {"entry": names[index], "dtype": dtype}
            report.update(worker.ask(index, dtype, most_samples))
            reports.append(report)
            progress(report)
        worker.close()

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(drain) for _ in range(jobs)]:
            future.result()
    return [r for r in reports if r["verdict"] != "unsupported"]


def _names() -> list[str]:
    """Names of all entries, asked of a process that may import upstream's tests."""
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--names"],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = answer.stdout.splitlines()
    return [line[len("entry:") :] for line in lines if line.startswith("entry:")]


def summarize(reports: list[dict[str, object]]) -> str:
    """Return the counts, the exceptions with their reasons, and what failed."""
    verdicts = collections.Counter(str(r["verdict"]) for r in reports)
    replayed = sum(1 for r in reports if r.get("replays"))
    lines = [
        f"entries (op and dtype) run: {len(reports) - verdicts['no samples']}",
        f"  runs of a sample: {sum(int(r.get('runs', 0)) for r in reports)}",
        f"  of which raise an error, without remat too: "
        f"{sum(int(r.get('errors', 0)) for r in reports)}",
        f"  with at least one replay: {replayed}",
        f"  equal bit for bit: {verdicts['equal']}",
        f"  excepted: {verdicts['excepted']}",
        f"  different: {verdicts['different']}",
        f"  crashed: {verdicts['crashed']}",
        f"no samples upstream: {verdicts['no samples']}",
    ]
    for verdict in ("excepted", "no samples", "different", "crashed"):
        lines += [
            f"{verdict}: {r['entry']} {r['dtype']}: {r.get('reason')}"
            for r in sorted(reports, key=lambda r: (str(r["entry"]), str(r["dtype"])))
            if r["verdict"] == verdict
        ]
    return "\n".join(lines)


def failures(reports: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the entries that are neither equal nor excepted."""
    return [r for r in reports if r["verdict"] in ("different", "crashed")]


def main() -> int:
    """Run a sweep from the command line; the exit code says whether all is equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="check every n-th op")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--most-samples", type=int, default=1000, help="per entry")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="the name of one op")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=pathlib.Path, help="write all reports here")
    options = parser.parse_args()

    def progress(report: dict[str, object]) -> None:
        if report["verdict"] in ("different", "crashed"):
            print(json.dumps(report), flush=True)

    reports = sweep(
        every=options.every,
        dtypes=options.dtypes,
        most_samples=options.most_samples,
        jobs=options.jobs,
        only=options.only,
        device=options.device,
        progress=progress,
    )
    print(summarize(reports))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1), encoding="utf-8")
    return 1 if failures(reports) or not reports else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        _work(sys.argv[2])
    elif sys.argv[1:] == ["--names"]:
        sys.argv = sys.argv[:1]
        for entry in _table():
            print("entry:" + entry.name)
    else:
        sys.exit(main())
