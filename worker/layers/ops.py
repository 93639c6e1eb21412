"""The kernels a model is written against. One implementation per device; the model never knows which it has."""

from __future__ import annotations

from typing import Protocol

import torch


class Linear(Protocol):
    """A weight laid out for its device."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] -> [T, out]."""
        ...


class Rotation(Protocol):
    """Rotary embedding for the positions of one pass."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """Rotate q [T, heads, head_dim] and k [T, kv_heads, head_dim] in place (halves, not interleaved)."""
        ...


class Ops(Protocol):
    """Kernels of one device. Activations are [T, size] in the model's dtype, T = tokens of the pass."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Prepare weight [out, in] for repeated use; the caller drops its own reference."""
        ...

    def head(self, weight: torch.Tensor) -> Linear:
        """Prepare the output projection; its results, the logits, may be wider than the model's dtype."""
        ...

    def rotation(self, cos_sin: torch.Tensor, positions: torch.Tensor) -> Rotation:
        """`cos_sin` is the fp32 table [context, head_dim], cosines in the first half; `positions` int64 [T]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last dimension, into a new tensor."""
        ...

    def fused_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """residual += x in place; returns rms_norm(residual). May reuse x's memory."""
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * n] -> silu(x[:, :n]) * x[:, n:]."""
        ...
