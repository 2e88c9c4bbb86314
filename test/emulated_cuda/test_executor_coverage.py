"""Every operator that only CUDA has is run, or refused for a reason that is documented.

What the CPU has, too, is compared with it in ``test_executor_ops.py``.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent
#: Done by the executor itself or on the host.
ELSEWHERE = {"aten::_cudnn_rnn_flatten_weight", "aten::record_stream"}
#: By kind: what docs/emulated_cuda.md says is refused.
REFUSED = {
    "sparse or packed weights, float8": (
        r"aten::_(cslt|sparse_semi_structured|to_sparse_semi_structured)"
        r"|aten::_(convert_weight_to_int4pack|weight_int4pack_mm|mixed_dtypes_linear)"
        r"|aten::_scaled_mm"
    ),
    "attention below scaled_dot_product_attention": (
        r"aten::_(flash|efficient)_attention_|aten::_fill_mem_eff_dropout_mask_"
        r"|aten::_triton_"
    ),
    "cuDNN's own CTC loss": r"aten::_cudnn_ctc_loss",
    "fused for inference, or with an out argument": (
        r"aten::cudnn_convolution_add_relu"
        r"|aten::(_conv_depthwise2d|cudnn_convolution|batch_norm_elemt)\.out"
    ),
    "ROCm's": r"aten::miopen_",
    "symmetric memory of several GPUs": r"symm_mem::",
}


def _cuda_only() -> list[str]:
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    elsewhere = (
        "CPU",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
        "CompositeImplicitAutograd",
    )
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    return sorted(
        name for name in names if not any(kernel(name, key) for key in elsewhere)
    )


def test_what_only_cuda_has_is_run_or_documented_as_refused() -> None:
    executor = ctypes.CDLL(os.environ["EMULATED_CUDA_EXECUTOR"])
    names = _cuda_only()
    assert len(names) > 50
    for name in names:
        runs = name in ELSEWHERE or executor.emulated_cuda_has_substitute(name.encode())
        kinds = [
            kind for kind, names in REFUSED.items() if re.match(f"({names})", name)
        ]
        assert bool(runs) != bool(kinds), f"{name}: runs {runs}, refused as {kinds}"


def test_the_kinds_are_documented() -> None:
    text = (HERE.parents[1] / "docs/emulated_cuda.md").read_text(encoding="utf-8")
    for kind in REFUSED:
        assert f"| {kind} |" in text


def test_a_refused_operator_says_its_name() -> None:
    x = torch.ones(16, 16, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    with pytest.raises(NotImplementedError, match="aten::_scaled_mm"):
        torch._scaled_mm(x, x.t(), one, one)


def test_grid_sampler_of_cudnn() -> None:
    x, grid = torch.randn(2, 3, 8, 8), torch.rand(2, 4, 4, 2) * 2 - 1
    results = []
    for device in ("cpu", "cuda"):
        a = x.clone().to(device).requires_grad_()
        b = grid.clone().to(device).requires_grad_()
        y = F.grid_sample(a, b, align_corners=True)
        y.square().sum().backward()
        results.append([t.detach().cpu() for t in (y, a.grad, b.grad)])
    for cpu, cuda in zip(*results):
        torch.testing.assert_close(cuda, cpu)
    theta = torch.randn(2, 2, 3)
    torch.testing.assert_close(
        torch.cudnn_affine_grid_generator(theta.cuda(), 2, 3, 4, 4).cpu(),
        F.affine_grid(theta, [2, 3, 4, 4], align_corners=True),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_norm_in_parts_is_batch_norm_of_the_whole(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, dtype=dtype)
    nn.init.normal_(norm.weight)
    x = torch.randn(6, 3, 4, 4, dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)
    expected = norm(x)
    expected.backward(grad)

    parts = [part.detach().cuda() for part in x.split([2, 4])]
    grads = [part.cuda() for part in grad.split([2, 4])]
    weight, bias = norm.weight.detach().cuda(), norm.bias.detach().cuda()
    running = torch.zeros(3, dtype=dtype).cuda(), torch.ones(3, dtype=dtype).cuda()
    stats = [torch.batch_norm_stats(part, norm.eps) for part in parts]
    means, invstds = (torch.stack(values) for values in zip(*stats))
    counts = torch.tensor([p.numel() / 3 for p in parts], dtype=dtype).cuda()
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0], means, invstds, *running, norm.momentum, norm.eps, counts
    )
    outputs = [
        torch.batch_norm_elemt(part, weight, bias, mean, invstd, norm.eps)
        for part in parts
    ]
    torch.testing.assert_close(torch.cat(outputs).cpu(), expected.detach())
    torch.testing.assert_close(running[0].cpu(), norm.running_mean)
    torch.testing.assert_close(running[1].cpu(), norm.running_var)

    sums = [
        torch.batch_norm_backward_reduce(g, p, mean, invstd, weight, True, True, True)
        for g, p in zip(grads, parts)
    ]
    dy, dy_xmu, grad_weight, grad_bias = (sum(values) for values in zip(*sums))
    torch.testing.assert_close(grad_weight.cpu(), norm.weight.grad)
    torch.testing.assert_close(grad_bias.cpu(), norm.bias.grad)
    inputs = [
        torch.batch_norm_backward_elemt(
            g, p, mean, invstd, weight, dy, dy_xmu, counts.to(torch.int32)
        )
        for g, p in zip(grads, parts)
    ]
    torch.testing.assert_close(torch.cat(inputs).cpu(), x.grad)
