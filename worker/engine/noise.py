"""Counter-based randomness: a draw depends on (seed, number of the token) and on nothing else, so a seeded request gets
the same tokens in any batch, in any place, after any retraction."""

from __future__ import annotations

_MASK_64 = 0xFFFFFFFFFFFFFFFF
_WEYL = 0x9E3779B97F4A7C15  # 2**64 / golden ratio


def uniform(seed: int, num_generated: int) -> float:
    """A number in [0, 1) with 53 random bits, for the choice of token `num_generated` of a request."""
    return (_mix(_mix(seed & _MASK_64) ^ (num_generated * _WEYL & _MASK_64)) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    """One output of splitmix64 (Steele, Lea, Flood 2014) from state x: a bijection of 64-bit words."""
    x = (x + _WEYL) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)
