"""Root-mean-square norm, alone and fused with the residual addition before it."""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel, next_power_of_2


@kernel
def _rms_norm(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    tl.store(out_ptr + row * SIZE + columns, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


@kernel
def _add_rms_norm(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    here = row * SIZE + columns
    x = tl.load(x_ptr + here, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + here, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual_ptr + here, x.to(residual_ptr.dtype.element_ty), mask=mask)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    tl.store(x_ptr + here, (x * scale * weight).to(x_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, size], rows contiguous -> normed copy [T, size]."""
    tokens, size = x.shape
    out = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    if tokens:
        _rms_norm[(tokens,)](
            x, weight, out, x.stride(0), eps, SIZE=size, BLOCK=next_power_of_2(size), num_warps=_warps(size)
        )
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x, then x = rms_norm(residual); both [T, size] contiguous, both in place. Returns x."""
    tokens, size = x.shape
    if tokens:
        _add_rms_norm[(tokens,)](
            x, residual, weight, eps, SIZE=size, BLOCK=next_power_of_2(size), num_warps=_warps(size)
        )
    return x


def _warps(size: int) -> int:
    """Warps for a row: 8 elements a thread and pass."""
    return min(16, max(1, next_power_of_2(size) // 512))
