"""`Ops` for CUDA: cuBLAS products and this package's kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from worker.layers.cuda.activation import silu_and_mul
from worker.layers.cuda.cublas_lt import WideProducts
from worker.layers.cuda.norm import add_rms_norm, rms_norm
from worker.layers.ops import Linear, Rotation


class CudaLinear:
    """A weight as cuBLAS takes it: [out, in], row after row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, wide: WideProducts) -> None:
        self.weight = weight
        self.bias = bias
        self._wide = wide

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product = self._wide.find(len(x), self.weight, x.dtype) if self.bias is None else None
        if product is None:
            return F.linear(x, self.weight, self.bias)
        out = x.new_empty((len(x), len(self.weight)))
        product(x, self.weight, out)
        return out


class CudaHead:
    """The output projection. Logits are fp32 (bf16 would round many of them to the same number) and stand in one
    buffer, each call's over those of the call before, so that they can be read after a graph has computed them."""

    def __init__(self, weight: torch.Tensor, wide: WideProducts) -> None:
        self.weight = weight
        self._wide = wide
        self._logits = self._empty(0)
        self._oversize = self._logits

    def reserve(self, max_rows: int) -> None:
        """Make the buffer. Graphs captured before lose theirs."""
        self._logits = self._empty(max_rows)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._logits[: len(x)]
        if len(out) < len(x):
            out = self._oversize = self._empty(len(x))
        product = self._wide.find(len(x), self.weight, out.dtype)
        if product is None:
            torch.mm(x, self.weight.t(), out_dtype=torch.float32, out=out)
        else:
            product(x, self.weight, out)
        return out

    def latest(self, rows: int) -> torch.Tensor:
        """The logits of the last pass, which had `rows` rows."""
        return self._logits[:rows] if rows <= len(self._logits) else self._oversize

    def _empty(self, rows: int) -> torch.Tensor:
        return torch.empty((rows, len(self.weight)), dtype=torch.float32, device=self.weight.device)


class CudaOps:
    """Kernels of the CUDA runner. They belong to `CudaAttention`, which rotates queries and keys as it stores them."""

    def __init__(self) -> None:
        self.heads: list[CudaHead] = []  # those made so far: a decoder has one
        self._wide = WideProducts()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return CudaLinear(weight.contiguous(), bias, self._wide)

    def head(self, weight: torch.Tensor) -> Linear:
        self.heads.append(CudaHead(weight, self._wide))
        return self.heads[-1]

    def rotation(self, cos_sin: torch.Tensor, positions: torch.Tensor) -> Rotation:
        return _left_to_attention

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x.reshape(-1, x.shape[-1]), weight, eps).view(x.shape)

    def fused_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return add_rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(x)


def _left_to_attention(q: torch.Tensor, k: torch.Tensor) -> None:
    """See `rotate_and_store`: one kernel rotates and writes the cache."""
