"""Composite ops, which run above capture, whose kernels touch bytes themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import rnn

LENGTHS = (9, 5, 3, 1)


def _on_host(values: object) -> torch.Tensor:
    """Where these ops want their sizes; made by an op, so evicted on the CPU."""
    return torch.tensor(values, device="cpu") + 0


def _lengths() -> torch.Tensor:
    return _on_host(LENGTHS)


def _packed(x: torch.Tensor) -> rnn.PackedSequence:
    return rnn.pack_padded_sequence(x, _lengths(), batch_first=True)


def _recurrent(kind: type[torch.nn.RNNBase], x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(5)
    layer = kind(16, 24, 2, dropout=0.5, bidirectional=True, batch_first=True)
    padded, _ = rnn.pad_packed_sequence(layer(_packed(x))[0], batch_first=True)
    return padded


def _ctc(x: torch.Tensor) -> torch.Tensor:
    log_probabilities = x.permute(1, 0, 2).log_softmax(-1)
    targets = torch.arange(8).reshape(4, 2) % 15 + 1
    return F.ctc_loss(log_probabilities, targets, _on_host([9] * 4), _lengths() // 4)


def _nanmean_out(x: torch.Tensor) -> torch.Tensor:
    x = x.detach() + 0
    return torch.nanmean(x, out=torch.zeros(()) + 0)


def _checked_sparse(x: torch.Tensor) -> torch.Tensor:
    indices = torch.arange(9) + 0
    return torch.sparse_coo_tensor(
        indices[None], x[0], (12, 16), check_invariants=True
    ).to_dense()


def _sobol(x: torch.Tensor) -> torch.Tensor:
    return x[0, 0, :3] * torch.quasirandom.SobolEngine(3, scramble=True, seed=1).draw(8)


OPS = {
    "ctc_loss": _ctc,
    "nanmean.out": _nanmean_out,
    "pack_padded_sequence": lambda x: _packed(x).data,
    "pad_packed_sequence": lambda x: rnn.pad_packed_sequence(_packed(x))[0],
    "packed lstm": lambda x: _recurrent(torch.nn.LSTM, x),
    "packed gru": lambda x: _recurrent(torch.nn.GRU, x),
    "packed rnn": lambda x: _recurrent(torch.nn.RNN, x),
    "sobol": _sobol,
    "sparse with checks": _checked_sparse,
    "tensor_split": lambda x: x.tensor_split(_on_host([1, 3]))[1],
    "tensor_split into parts": lambda x: x.tensor_split(_on_host(3), 1)[2],
    "reshape from tensor": lambda x: torch.ops.aten._reshape_from_tensor(
        x, _on_host([4, 144])
    ),
}
CPU_ONLY = {
    "nanmean.out": "calls a kernel itself, which the emulated device refuses",
    "sobol": "has no kernel on CUDA",
    "sparse with checks": "the emulated device has no sparse tensors",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.cpu_only(CPU_ONLY[name]))
        if name in CPU_ONLY
        else name
        for name in OPS
    ],
)
def test_bytes_that_a_composite_op_reads_are_there(run_twice, device, name):
    def step():
        x = torch.randn(4, 9, 16, device=device, requires_grad=True)
        y = OPS[name](x.tanh())
        late = y.sin()
        if late.requires_grad:
            late.sum().backward()
        return {"y": y, "late": late, "x": x.grad}

    run_twice(step)


@pytest.mark.cpu_only("fbgemm is for the CPU")
def test_prepacked_weights(run_twice, device):
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this machine or this build of torch has no FBGEMM kernels")

    def step():
        weight = torch.randn(16, 16, device=device).tanh()
        x = torch.randn(4, 16, device=device).tanh()
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        bias = torch.ones(16).sin()
        y = torch.fbgemm_linear_fp16_weight_fp32_activation(x, packed, bias)
        scale, zero = torch.choose_qparams_optimized(x.t(), 64, 10, 0.16, 4)
        return {"y": y.sin(), "scale": scale, "zero": zero}

    run_twice(step)
