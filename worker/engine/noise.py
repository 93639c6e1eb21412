"""Counter-based randomness: a draw depends on (seed, number of the token, vocabulary index) and on nothing else, so a
seeded request gets the same tokens in any batch, in any place, after any retraction."""

from __future__ import annotations

import torch

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def stream_key(seed: int, num_generated: int) -> tuple[int, int]:
    """Two 32-bit words that name the noise of one token (splitmix64 finaliser over seed and counter)."""
    mixed = _mix_64((_mix_64(seed & _MASK_64) + num_generated * 0x9E3779B97F4A7C15) & _MASK_64)
    return mixed >> 32, mixed & _MASK_32


def exponential_noise(keys: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Independent Exp(1) draws, fp32 in the shape of `indices`.

    `keys` int64 [N, 2] from stream_key; `indices` int64 [N, M] or [1, M]: vocabulary indices. With weights w,
    argmax(w / noise) picks index i with probability w_i / sum(w) (the race of exponentials, i.e. Gumbel-max).
    """
    bits = _mix_32(_mix_32(indices ^ keys[:, :1]) ^ keys[:, 1:])
    # 23 bits, centred: never 0 and never 1 in fp32, so the logarithm is finite and not 0
    uniform = ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -uniform.log_()


def _mix_32(x: torch.Tensor) -> torch.Tensor:
    """Bijective mixing of 32-bit words held in int64. Both factors are below 2**31, so no product overflows."""
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & _MASK_32
    x = x ^ (x >> 15)
    x = (x * 0x735A2D97) & _MASK_32
    return x ^ (x >> 15)


def _mix_64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)
