"""Subclasses, layouts and dtypes that pass through or are managed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.cuda.remat import _testing
from torch.utils._python_dispatch import TorchDispatchMode

import models


class _Tagged(torch.Tensor):
    """A plain subclass, with a name of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class _Wrapper(torch.Tensor):
    """A wrapper subclass that computes on the tensor inside."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(t):
            return t.inner if isinstance(t, cls) else t

        def wrap(t):
            return cls(t) if isinstance(t, torch.Tensor) else t

        tree_map = torch.utils._pytree.tree_map
        found = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(wrap, found)


def test_plain_subclass_is_managed(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device).as_subclass(_Tagged)
        y = x.tanh().sin()
        assert type(y) is _Tagged
        return {"y": y.as_subclass(torch.Tensor)}

    run_twice(step)


@pytest.mark.parametrize(
    "read",
    [
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        np.asarray,
        lambda y: torch.from_dlpack(y),
        lambda y: pickle.loads(pickle.dumps(y)),
    ],
)
@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_plain_subclass_is_read_outside_ops(remat, device, read):
    y = torch.randn(16, 64, device=device).as_subclass(_Tagged).tanh()
    expected = y.clone().as_subclass(torch.Tensor)
    assert _testing.evict(y)
    found = torch.as_tensor(read(y)).as_subclass(torch.Tensor)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("alias", [torch.Tensor.numpy, np.asarray, torch.from_dlpack])
@pytest.mark.cpu_only("reads host memory; see test_cuda_graphs.py")
def test_alias_of_a_plain_subclass_is_watched(remat, device, alias):
    y = torch.randn(16, 64, device=device).as_subclass(_Tagged).tanh()
    view = alias(y)
    z = y.sin()
    expected = torch.tensor(z.clone().as_subclass(torch.Tensor).tolist())
    view[:] = 0
    _testing.evict_all()
    assert torch.equal(z.as_subclass(torch.Tensor), expected)
    assert int(y.count_nonzero()) == 0


def test_wrapper_subclass_has_its_inner_tensors_managed(remat, device):
    x = _Wrapper(torch.randn(16, 64, device=device))
    y = x.tanh().sin()
    expected = y.inner.clone()
    assert _testing.evict(y.inner)
    assert torch.equal(y.inner, expected)


def test_wrapper_subclass_trains_alike(run_twice, device):
    def step():
        x = _Wrapper(torch.randn(16, 64, device=device))
        y = (x.tanh() @ x.t()).relu().sum()
        return {"y": y.inner}

    run_twice(step)


def test_parameter_and_buffer_classes_survive(remat, device):
    parameter = nn.Parameter(torch.randn(8, 8, device=device))
    assert isinstance(parameter, nn.Parameter)
    layer = nn.Linear(8, 8).to(device)
    layer.weight = nn.Parameter(layer.weight.detach().tanh())
    layer(torch.randn(2, 8, device=device)).sum().backward()
    assert isinstance(layer.weight, nn.Parameter)
    assert layer.weight.grad is not None


def test_mode_that_changes_results_is_applied_once(run_twice, device):
    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.sin.default:
                return found * 2
            return found

    def step():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        with Double():
            y = x.sin()
        z = y.cos()
        z.sum().backward()
        return {"y": y, "z": z, "x": x.grad}

    run_twice(step)


def test_jagged_nested_tensors(run_twice, device):
    def step():
        layer = nn.Linear(16, 16).to(device)
        parts = [torch.randn(n, 16, device=device) for n in (3, 7, 1)]
        nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        y = layer(nested).relu() * 2
        y.values().square().sum().backward()
        return {"y": y.values(), "offsets": y.offsets(), **models.state(layer)}

    run_twice(step)


@pytest.mark.cpu_only("the emulated device has no strided nested tensors")
def test_strided_nested_tensors(run_twice, device):
    def step():
        parts = [torch.randn(n, 16, device=device) for n in (3, 7, 1)]
        nested = torch.nested.nested_tensor(parts)
        y = nested.relu() * 2
        return {"y": y.to_padded_tensor(0.0).sin()}

    run_twice(step)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.cpu_only("the emulated device has no sparse tensors")
def test_sparse_inputs_and_outputs(run_twice, device, layout):
    def step():
        dense = torch.randn(16, 16, device=device).relu()
        sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
        x = torch.randn(16, 8, device=device, requires_grad=True)
        y = sparse @ x.tanh()
        y.sin().sum().backward()
        again = (sparse * 2).to_dense().exp()
        return {"y": y, "x": x.grad, "sparse": sparse, "again": again}

    run_twice(step)


@pytest.mark.cpu_only("the emulated device has no sparse tensors")
def test_coalesce_and_sparse_sum(run_twice, device):
    def step():
        indices = torch.tensor([[0, 0, 2], [1, 1, 3]], device=device)
        values = torch.randn(3, device=device).tanh().requires_grad_()
        sparse = torch.sparse_coo_tensor(indices, values, (4, 4)).coalesce()
        total = torch.sparse.sum(sparse, 0).to_dense()
        total.square().sum().backward()
        return {"total": total, "v": values.grad, "sparse": sparse.detach()}

    run_twice(step)


@pytest.mark.cpu_only("the emulated device has no quantized tensors")
def test_quantized_tensors(run_twice, device):
    def step():
        x = torch.randn(16, 64, device=device).tanh()
        q = torch.quantize_per_tensor(x, 0.02, 10, torch.quint8)
        c = torch.quantize_per_channel(
            x, torch.full((16,), 0.02), torch.zeros(16), 0, torch.qint8
        )
        # The quantizer keeps these two as they are.
        scales = torch.full((64,), 0.02, dtype=torch.float64).sin()
        zeros = torch.zeros(64, dtype=torch.int64) + 3
        held = torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8)
        del scales, zeros
        return {
            "q": q,
            "d": q.dequantize().sin(),
            "c": c.dequantize(),
            "h": held.dequantize(),
        }

    run_twice(step, expect_replays=False)


def test_dynamically_quantized_module(run_twice, device):
    if device != "cpu" or "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("needs the CPU, and FBGEMM in this build of torch")

    def step():
        model = torch.ao.quantization.quantize_dynamic(
            models.deep_mlp(2), {nn.Linear}, dtype=torch.qint8
        )
        with torch.no_grad():
            return {"y": model(torch.randn(16, 64)).sin()}

    run_twice(step, expect_replays=False)


def test_meta_tensors_are_not_managed(remat, device):
    model = models.deep_mlp(2).to("meta")
    y = model(torch.empty(4, 64, device="meta"))
    assert y.device.type == "meta"
    assert not _testing.is_managed(y)


def test_fake_tensors_pass_through(run_twice, device):
    def step():
        with FakeTensorMode() as mode:
            model = models.deep_mlp(2)
            planned = model(torch.empty(4, 64)).shape
            assert mode is not None
        model = models.deep_mlp(2).to(device)
        y = model(torch.randn(4, 64, device=device))
        y.sum().backward()
        return {"planned": tuple(planned), "y": y, **models.state(model)}

    run_twice(step)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.complex64,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.float8_e4m3fn,
    ],
)
def test_every_dtype_comes_back(remat, device, dtype):
    x = torch.arange(64, device=device).to(torch.float32) % 3
    y = x.to(dtype)
    expected = y.to(torch.complex64 if dtype.is_complex else torch.float32)
    assert _testing.evict(y)
    assert torch.equal(y.to(expected.dtype), expected)
    assert y.dtype == dtype


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_with_backward_outside(run_twice, device, cache):
    def step():
        model = nn.Sequential(models.deep_mlp(3), nn.LayerNorm(64), nn.Linear(64, 8))
        model.to(device)
        x = torch.randn(16, 64, device=device)
        with torch.autocast(device, torch.bfloat16, cache_enabled=cache):
            y = model(x)
            z = model(x * 2)
        loss = F.cross_entropy(y.float() + z.float(), torch.arange(16) % 8)
        loss.backward()
        return {"y": y, "loss": loss, **models.state(model)}

    run_twice(step)


def test_autocast_within_a_budget(run_twice, device):
    def step():
        model = models.transformer(64, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16):
                loss = model(torch.randn(8, 32, 64, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return {"losses": losses, **models.state(model)}

    run_twice(step, budgets=(0.7,))


def test_read_under_autocast_replays_in_the_dtype_of_then(remat, device):
    x = torch.randn(16, 16, device=device)
    y = x @ x
    expected = y.clone()
    assert _testing.evict(y)
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(y + 0, expected)
        assert y.dtype == torch.float32


def test_gradient_scaler_skips_alike(run_twice, device):
    def step():
        model = models.deep_mlp(2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=1)
        scales = []
        for i in range(4):
            x = torch.randn(16, 64, device=device)
            loss = model(x).square().mean() * (float("inf") if i == 1 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return {"scales": scales, **models.state(model)}

    run_twice(step)


@pytest.fixture
def no_compiled_kernels() -> Iterator[None]:
    """TorchScript compiles none of its own, which the emulated device refuses."""
    before = torch._C._jit_texpr_fuser_enabled()
    torch._C._jit_set_texpr_fuser_enabled(False)
    yield
    torch._C._jit_set_texpr_fuser_enabled(before)


def test_scripted_and_traced_modules(run_twice, device, no_compiled_kernels):
    def step():
        def body(x: torch.Tensor, n: int) -> torch.Tensor:
            for i in range(n):
                if i % 2 == 0:
                    x = x.tanh() + 1
                else:
                    x = x.sin() * 0.5
            return x

        scripted = torch.jit.script(body)
        model = models.deep_mlp(2).to(device)
        traced = torch.jit.trace(model, torch.ones(4, 64, device=device))
        results = []
        for _ in range(3):  # profiling runs, then the optimized graph
            x = torch.randn(4, 64, device=device, requires_grad=True)
            y = traced(scripted(model(x), 5)).square().sum()
            y.backward()
            results += [y.detach(), x.grad]
        return {"results": results, **models.state(model)}

    run_twice(step)


class _Holds(nn.Module):
    """Tensors wherever a script module can have them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32).mul(0.1).tanh())
        self.register_buffer("mask", torch.ones(32, 32).tril().sin())
        self.listed = [torch.ones(32).mul(2).sin()]

    def forward(self, x):
        return (x @ self.weight * self.mask).sum(0) + self.listed[0]


def test_script_modules_are_saved(run_twice, device, tmp_path):
    def step():
        module = _Holds()
        constant = torch.randn(32, 32).tanh()
        scripted = torch.jit.script(module)
        traced = torch.jit.trace(lambda x: x @ constant, torch.ones(32, 32))
        loaded = []
        for script in (scripted, torch.jit.freeze(scripted.eval()), traced):
            torch.jit.save(script, str(tmp_path / "module.pt"))
            loaded.append(torch.jit.load(str(tmp_path / "module.pt")))
            buffer = io.BytesIO()
            torch.jit.save(script, buffer)
            buffer.seek(0)
            loaded.append(torch.jit.load(buffer))
        scripted._save_for_lite_interpreter(str(tmp_path / "module.ptl"))
        return {"values": [module(torch.ones(32, 32)) for module in loaded]}

    run_twice(step)


def test_mkldnn_and_other_opaque_layouts(run_twice, device):
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        pytest.skip("needs the CPU, and oneDNN in this build of torch")

    def step():
        x = torch.randn(2, 3, 8, 8).tanh()
        y = torch.relu(x.to_mkldnn()).to_dense()
        return {"y": y, "z": y.sin()}

    run_twice(step, expect_replays=False)


def test_weak_tensor_keys_and_tensor_attributes_survive(remat, device):
    y = torch.randn(16, device=device).tanh()
    y.note = "mine"
    assert _testing.evict(y)
    y.sum()
    assert y.note == "mine"


@pytest.mark.cpu_only("the emulated device has no named tensors")
def test_named_tensors(run_twice, device):
    def step():
        x = torch.randn(4, 8, names=("rows", "columns"), device=device)
        y = x.tanh().sum("columns")
        assert y.names == ("rows",)
        return {"y": y.rename(None).sin()}

    run_twice(step)
