"""Ops that change an argument without saying so are all in OpTraits.cpp's table."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SOURCE = pathlib.Path(__file__).parents[2] / "aten_hooks" / "capture" / "OpTraits.cpp"
MOST_SAMPLES = 5

# Only where there is no test; found by reading their kernels.
ELSEWHERE = {
    "cpu": {
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_backward",
        "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm",
        "aten::batch_norm_gather_stats",
        "aten::batch_norm_gather_stats_with_counts",
    },
    "cuda": {
        "aten::_cudnn_rnn_backward",  # the emulated device's leaves the reserve alone
        "aten::miopen_batch_norm",
        "aten::mkldnn_rnn_layer_backward",
    },
}
if not torch.backends.mkldnn.is_available():
    ELSEWHERE["cpu"].add("aten::mkldnn_rnn_layer_backward")


class _Watch(TorchDispatchMode):
    """Compares the storages of an op's arguments before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[tuple[str, str]] = set()
        self.declared: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        if "inplace_view" in str(func.tags) or name in ("aten::set_", "aten::resize_"):
            return func(*args, **kwargs)
        declared: set[int] = set()
        before: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in pytree.tree_leaves(value):
                if not _has_bytes(tensor):
                    continue
                key = tensor.untyped_storage()._cdata
                if argument.alias_info is not None and argument.alias_info.is_write:
                    declared.add(key)
                    self.declared.add((name, argument.name))
                elif key not in before:
                    whole = _bytes_of(tensor)
                    before[key] = (argument.name, whole, whole.clone())
        found = func(*args, **kwargs)
        for key, (argument_name, whole, copy) in before.items():
            if key not in declared and not torch.equal(whole, copy):
                self.written.add((name, argument_name))
        return found


def _has_bytes(value: object) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type in ("cpu", "cuda")
        and not value.is_quantized
        and not value._is_zerotensor()
        and torch._C._has_storage(value)
        and value.untyped_storage().nbytes() > 0
    )


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


@contextlib.contextmanager
def _upstreams_tests() -> Iterator[None]:
    # Upstream's test modules read the command line and warn.
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.argv = arguments


def _backward(found: object) -> None:
    roots = [
        t
        for t in pytree.tree_leaves(found)
        if isinstance(t, torch.Tensor) and t.requires_grad and t.layout == torch.strided
    ]
    if roots:
        sum(t.abs().sum() for t in roots).backward()


def _run_ops(device: str) -> None:
    from torch.testing._internal import common_methods_invocations as upstream

    for op in upstream.op_db:
        dtype = torch.float32
        if dtype not in op.supported_dtypes(device):
            dtype = torch.int64
        if dtype not in op.supported_dtypes(device):
            continue
        grad = op.supports_autograd and dtype.is_floating_point
        try:
            samples = list(op.sample_inputs(device, dtype, requires_grad=grad))
        except NotImplementedError:  # the emulated device has no sparse tensors
            continue
        step = max(1, len(samples) // MOST_SAMPLES)
        for sample in samples[::step]:
            with contextlib.suppress(Exception):  # upstream has samples that raise
                _backward(op(sample.input, *sample.args, **sample.kwargs))
            with contextlib.suppress(Exception), torch.inference_mode():
                fresh = pytree.tree_map_only(
                    torch.Tensor,
                    lambda t: t.detach().clone(),
                    (sample.input, sample.args, sample.kwargs),
                )
                op(fresh[0], *fresh[1], **fresh[2])


def _run_modules(device: str) -> None:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for made in info.module_inputs_func(
            info, device=device, dtype=torch.float32, requires_grad=True, training=True
        ):
            if made.forward_input is None:
                continue
            for grad in (True, False):
                with contextlib.suppress(Exception), torch.inference_mode(not grad):
                    module = info.module_cls(
                        *made.constructor_input.args, **made.constructor_input.kwargs
                    ).to(device)
                    args = pytree.tree_map_only(
                        torch.Tensor,
                        lambda t: t.detach().clone(),
                        (made.forward_input.args, made.forward_input.kwargs),
                    )
                    _backward(module.train()(*args[0], **args[1]))


def _run_by_hand(device: str) -> None:
    """What upstream's tables lack: running statistics, noise, observers."""
    with torch.device(device):
        _run_by_hand_here()


def _run_by_hand_here() -> None:
    x = torch.randn(4, 3, 8)
    for grad in (True, False):
        with torch.inference_mode(not grad):
            mean, var = torch.zeros(3), torch.ones(3)
            y = x.clone().requires_grad_(grad)
            _backward(F.batch_norm(y, mean, var, training=True))
            _backward(F.instance_norm(y, mean, var, use_input_stats=True))
            with contextlib.suppress(NotImplementedError):  # with autograd
                torch._batch_norm_impl_index(
                    y, None, None, mean, var, True, 0.1, 1e-5, False
                )
            F.rrelu(y, training=True)
            F.rrelu_(x.clone(), training=True)
    lstm, sequence = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    lstm(sequence)[0].sum().backward()
    y, eps = x.clone(), 1e-5
    mean, var = torch.zeros(3), torch.ones(3)
    operators = torch.ops.aten
    operators.native_batch_norm(y, None, None, mean, var, True, 0.1, eps)
    operators._native_batch_norm_legit(y, None, None, mean, var, True, 0.1, eps)
    operators._batch_norm_with_update(y, None, None, mean, var, 0.1, eps)
    operators.batch_norm_update_stats(y, mean, var, 0.1)
    operators.rrelu_with_noise(y, torch.zeros_like(y), 0.1, 0.3, True)
    operators.rrelu_with_noise_(y, torch.zeros_like(y), 0.1, 0.3, True)
    if x.is_cuda:
        weight = torch.ones(3)
        operators.cudnn_batch_norm(y, weight, weight, mean, var, True, 0.1, eps)
        parts = torch.zeros(2, 3), torch.ones(2, 3), mean, var, 0.1, eps
        operators.batch_norm_gather_stats(y, *parts, 4)
        operators.batch_norm_gather_stats_with_counts(y, *parts, torch.ones(2))
        lstm = torch.nn.LSTM(3, 4, 2, dropout=0.5)
        lstm(sequence)[0].sum().backward()
    torch.fused_moving_avg_obs_fake_quant(
        y,
        torch.ones(1, dtype=torch.int64),
        torch.ones(1, dtype=torch.int64),
        torch.full((1,), float("inf")),
        torch.full((1,), float("-inf")),
        torch.ones(1),
        torch.zeros(1, dtype=torch.int32),
        0.01,
        0,
        255,
        0,
    )


def _table() -> set[tuple[str, str]]:
    """The rules of OpTraits.cpp, one pair of op and argument each."""
    text = SOURCE.read_text(encoding="utf-8")
    names = re.search(r"> running\{(.*?)\}", text)
    assert names is not None
    running = re.findall(r'"(\w+)"', names[1])
    found = set()
    for op, arguments in re.findall(
        r'\{"(aten::\w+)",\s*k\w+,\s*(running|\{[^}]*\})', text
    ):
        listed = (
            running if arguments == "running" else re.findall(r'"(\w+)"', arguments)
        )
        found |= {(op, argument) for argument in listed}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("run", [_run_by_hand, _run_ops, _run_modules])
def test_every_undeclared_write_is_in_the_table(
    run: Callable[[str], None], device: str
) -> None:
    with _upstreams_tests(), _Watch() as watch:
        run(device)
    missing = watch.written - _table()
    assert not missing, sorted(missing)


def test_no_entry_of_the_table_is_made_up(device: str) -> None:
    with _Watch() as watch:
        _run_by_hand(device)
    proven = watch.written | watch.declared
    unproven = {op for op, _ in _table() - proven if op not in ELSEWHERE[device]}
    assert not unproven, sorted(unproven)
