"""Operators in the place of CUDA's kernels give what the CPU gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# No two devices promise the same numbers, or any.
RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial"),
    *("normal", "rand_like", "randint", "randint_like", "randn", "randn_like"),
    *("uniform", "nn.functional.alpha_dropout", "nn.functional.rrelu"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
    *("nn.functional.feature_alpha_dropout_with_train", "pca_lowrank", "svd_lowrank"),
    *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
    *("nn.functional.multi_head_attention_forward", "linalg.pinv"),
    *("empty", "empty_like", "empty_permuted", "empty_strided"),
    *("new_empty", "new_empty_strided"),
}
UNLIKE = {
    "as_strided": "the copy of a partial view has other memory around it",
    "tensor_split": "takes indices on the CPU, also for a CUDA tensor",
    "to_sparse": "sparse tensors are not supported",
}
DTYPES = (torch.float32, torch.float16, torch.int64, torch.complex64)
SAMPLES = 2
ENTRIES = [
    op
    for op in op_db
    if op.name not in RANDOM | UNLIKE.keys() and not op.name.startswith("sparse.")
]
PARTS = 5


def _moved(value: object, device: str, leaves: list[torch.Tensor]) -> object:
    if not isinstance(value, torch.Tensor):
        return device if value in ("cpu", torch.device("cpu")) else value
    leaf = value.detach().clone().to(device)
    if value.requires_grad:
        leaves.append(leaf.requires_grad_())
    return leaf


def _results(op, sample, device: str) -> list[object]:
    leaves: list[torch.Tensor] = []
    x, args, kwargs = pytree.tree_map(
        lambda value: _moved(value, device, leaves),
        (sample.input, tuple(sample.args), dict(sample.kwargs)),
    )
    found = op(x, *args, **kwargs)
    roots = [
        tensor
        for tensor in pytree.tree_leaves(sample.output_process_fn_grad(found))
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    grads: list[object] = []
    if roots and leaves:
        weights = [torch.full_like(root, 0.5) for root in roots]
        grads = list(torch.autograd.grad(roots, leaves, weights, allow_unused=True))
    return pytree.tree_leaves((found, grads))


def _difference(op, sample, dtype: torch.dtype) -> str | None:
    try:
        expected = _results(op, sample, "cpu")
    except Exception:
        return None  # the CPU cannot, nor need the device
    try:
        found = _results(op, sample, "cuda")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    loose = {"rtol": 0.02, "atol": 0.02} if dtype.itemsize == 2 else {}
    for left, right in zip(expected, found, strict=True):
        if not isinstance(left, torch.Tensor):
            continue
        if not right.is_cuda or left.shape != right.shape or left.dtype != right.dtype:
            return f"a result is {right.device} {tuple(right.shape)} {right.dtype}"
        try:
            torch.testing.assert_close(right.cpu(), left, equal_nan=True, **loose)
        except AssertionError as error:
            return str(error).replace("\n", " ")
        except RuntimeError:
            pass  # a type that cannot be compared, such as half complex
    return None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("part", range(PARTS))
def test_an_op_of_the_table_gives_what_the_cpu_gives(part, dtype):
    differences: dict[str, str] = {}
    ran = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ENTRIES[part::PARTS]:
            if dtype not in op.supported_dtypes("cuda"):
                continue
            grad = op.supports_autograd and all(
                dtype in op.supported_backward_dtypes(device)
                for device in ("cpu", "cuda")
            )
            torch.manual_seed(0)
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
            for sample in samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]:
                ran += 1
                difference = _difference(op, sample, dtype)
                if difference is not None:
                    differences.setdefault(op.formatted_name, difference[:300])
    assert ran > 20
    assert not differences


@pytest.mark.parametrize(
    "backend",
    [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fused_attention_gives_what_its_definition_gives(backend, is_causal):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 16, 8) for _ in range(3)]

    def run(device: str, dtype: torch.dtype, backends) -> list[torch.Tensor]:
        leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
        with sdpa_kernel(backends):
            out = F.scaled_dot_product_attention(*leaves, is_causal=is_causal)
        return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]

    expected = run("cpu", torch.float32, SDPBackend.MATH)
    for left, right in zip(expected, run("cuda", torch.half, backend), strict=True):
        torch.testing.assert_close(right.cpu().float(), left, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "backend",
    [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ],
)
def test_backward_of_attention_drops_what_forward_dropped(backend):
    """The output is linear in ``value``: its gradient there shows the mask."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, 2, 16, 8, device="cuda").half() for _ in range(2))
    value = torch.eye(16, device="cuda").half().expand(1, 2, 16, 16)
    leaf = value.clone().requires_grad_()
    query, key = (F.pad(x, (0, 8)) for x in (query, key))
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(query, key, leaf, dropout_p=0.5)
    weights = torch.zeros_like(out)
    weights[..., 3, 5] = 1  # what query 3 takes of every value
    (grad,) = torch.autograd.grad(out, leaf, weights)
    assert (out == 0).any()
    torch.testing.assert_close(grad[..., 5], out[..., 3, :].detach())


def test_arguments_that_overlap_still_do():
    x = torch.arange(10.0, device="cuda")
    x[1:].copy_(x[:-1].clone())
    x[:5].add_(x[5:])
    assert x.tolist() == [4, 5, 7, 9, 11, 4, 5, 6, 7, 8]


def test_results_that_alias_an_argument_still_do():
    x = torch.zeros(4, 4, device="cuda")
    x.diagonal().fill_(1)
    x.t()[0].add_(1)
    assert x.cpu().tolist()[0] == [2, 0, 0, 0]
    assert x.cpu().tolist()[1] == [1, 1, 0, 0]


def test_an_out_argument_grows():
    out = torch.empty(0, device="cuda")
    address = out.data_ptr()
    x = torch.ones(8, 8, device="cuda")
    assert torch.add(x, x, out=out) is out
    assert out.data_ptr() != address
    assert out.shape == (8, 8)
    assert out.sum().item() == 128


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x + y,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.addmm_(y, y),
    ],
)
def test_tensors_on_two_kinds_of_devices_are_refused(call):
    with pytest.raises(RuntimeError, match="same device"):
        call(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_a_number_on_the_host_is_allowed():
    assert (torch.ones(2, device="cuda") * torch.tensor(3.0)).tolist() == [3, 3]


def test_errors_are_those_of_the_op():
    x = torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("_to_sparse", lambda x: x.to_sparse()),
        ("_scaled_mm", lambda x: torch._scaled_mm(x, x.t(), x.sum(), x.sum())),
    ],
)
def test_an_op_that_is_not_supported_says_its_name(
    name: str, call: Callable[[torch.Tensor], object]
):
    with pytest.raises(NotImplementedError, match=f"emulated CUDA: aten::{name}"):
        call(torch.ones(16, 16, device="cuda"))
