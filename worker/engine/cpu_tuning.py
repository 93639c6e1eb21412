"""Tunes the process for the CPU runner: the C library's allocator and OpenMP's threads. Imports no torch."""

from __future__ import annotations

import ctypes
from collections.abc import MutableMapping

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_HEAP_BLOCK_BYTES = 32 * 2**20  # glibc accepts no more
_KEPT_FREE_BYTES = 2**30
_SPIN_COUNT = "2000"  # some tens of microseconds


def spin_briefly(env: MutableMapping[str, str]) -> None:
    """Make OpenMP's threads sleep soon when they wait at a barrier. Counts only before torch is first imported.

    A pass has hundreds of barriers. By default threads spin at them for milliseconds; when another process holds a core
    that burns the other one, and a pass takes ten times as long. Sleeping at once costs a quarter on an idle machine,
    this count next to nothing. The user's own settings win.
    """
    if "OMP_WAIT_POLICY" not in env:
        env.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks instead of returning them to the system.

    A pass allocates the same large temporaries in every layer; by default each of them is mapped anew and every page
    of it faults, which doubles the time of attention. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
