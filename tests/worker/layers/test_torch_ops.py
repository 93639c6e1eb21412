"""The torch kernels against their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from worker.layers.torch_ops import DenseLinear, PackedLinear, TorchOps


@pytest.mark.parametrize("tokens", [1, 2, 8, 33, 300])
@pytest.mark.parametrize("biased", [True, False])
def test_packed_linear_is_the_plain_one(tokens: int, biased: bool) -> None:
    weight, x = torch.randn(70, 48), torch.randn(tokens, 48)
    bias = torch.randn(70) if biased else None
    linear = TorchOps().linear(weight, bias)
    assert isinstance(linear, PackedLinear if torch.backends.mkldnn.is_available() else DenseLinear)
    torch.testing.assert_close(linear(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


def test_half_precision_weights_stay_dense() -> None:
    weight, x = torch.randn(70, 48).bfloat16(), torch.randn(3, 48).bfloat16()
    linear = TorchOps().linear(weight, None)
    assert isinstance(linear, DenseLinear)
    assert torch.equal(linear(x), F.linear(x, weight))


def test_norms() -> None:
    ops, eps = TorchOps(), 1e-2
    x, residual, weight = torch.randn(3, 16), torch.randn(3, 16), torch.randn(16)
    total = x + residual
    expected = total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    torch.testing.assert_close(ops.rms_norm(total, weight, eps), expected)
    torch.testing.assert_close(ops.fused_add_rms_norm(x, residual, weight, eps), expected)
    torch.testing.assert_close(residual, total)


def test_silu_and_mul() -> None:
    x = torch.randn(3, 10)
    kept = x.clone()
    gate, up = x[:, :5], x[:, 5:]
    torch.testing.assert_close(TorchOps().silu_and_mul(x), gate / (1 + (-gate).exp()) * up)
    assert torch.equal(x, kept)
