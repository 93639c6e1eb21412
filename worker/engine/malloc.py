"""Tunes the C library's allocator for the CPU runner."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_HEAP_BLOCK_BYTES = 32 * 2**20  # glibc accepts no more
_KEPT_FREE_BYTES = 2**30


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks instead of returning them to the system.

    A pass allocates the same large temporaries in every layer; by default each of them is mapped anew and every page
    of it faults, which doubles the time of attention. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
