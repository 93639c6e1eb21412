"""The gated activation of the MLP."""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel

_BLOCK = 1024


@kernel
def _silu_and_mul(x_ptr: tl.tensor, out_ptr: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(x_ptr + row * (2 * SIZE) + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * (2 * SIZE) + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 * n] contiguous -> silu(x[:, :n]) * x[:, n:], [T, n]."""
    tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    if tokens:
        _silu_and_mul[(tokens, -(-size // _BLOCK))](x, out, SIZE=size, BLOCK=_BLOCK, num_warps=4)
    return out
