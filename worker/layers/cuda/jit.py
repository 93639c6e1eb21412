"""How the kernels of this package are compiled and launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., None]) -> Any:
    """`triton.jit`, typed. Launch with `kernel[grid](...)`."""
    return triton.jit(function)


def next_power_of_2(n: int) -> int:
    """Smallest power of two >= n, for n >= 1."""
    return 1 << (n - 1).bit_length()
