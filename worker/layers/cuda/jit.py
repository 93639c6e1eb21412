"""How the kernels of this package are compiled and launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., None]) -> Any:
    """`triton.jit`, typed. Launch with `kernel[grid](...)`."""
    return triton.jit(function)


def kernel_for_any(*counts: str) -> Callable[[Callable[..., None]], Any]:
    """As `kernel`, compiled once whatever the values of the arguments named `counts` (not again for 1 or 16)."""
    return lambda function: triton.jit(function, do_not_specialize=counts)


def next_power_of_2(n: int) -> int:
    """Smallest power of two >= n, for n >= 1."""
    return 1 << (n - 1).bit_length()
