"""`Ops` in plain torch: what the CPU runs, and the reference for kernels of other devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from worker.layers.ops import Linear, Rotation

# oneDNN lays a weight out for the batch size it is told; this one was fastest or equal for every size from 1 to 256.
_PACK_BATCH_SIZE = 256


class TorchOps:
    """Plain torch kernels, on any device."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if _can_pack(weight):
            return PackedLinear(weight, bias)
        return DenseLinear(weight, bias)

    def head(self, weight: torch.Tensor) -> Linear:
        return self.linear(weight, None)

    def rotation(self, cos_sin: torch.Tensor, positions: torch.Tensor) -> Rotation:
        return TorchRotation(cos_sin, positions)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def fused_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return F.rms_norm(residual.add_(x), weight.shape, weight, eps)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class DenseLinear:
    """The weight as it is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedLinear:
    """A weight in oneDNN's blocked layout: up to twice as fast as the plain one for the few tokens of a decode."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._apply: Any = torch.ops.mkldnn._linear_pointwise.default
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_BATCH_SIZE)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._apply(x, self._weight, self._bias, "none", [], "")
        return out


class TorchRotation:
    """x * cos + rotate_half(x) * sin, with cos and sin gathered once per pass."""

    def __init__(self, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        self._cos = torch.cat((cos, cos), dim=-1)
        self._sin = torch.cat((-sin, sin), dim=-1)

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> None:
        for x in (q, k):
            low, high = x.chunk(2, dim=-1)
            swapped = torch.cat((high, low), dim=-1)
            x.mul_(self._cos).addcmul_(swapped, self._sin)


def _can_pack(weight: torch.Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
