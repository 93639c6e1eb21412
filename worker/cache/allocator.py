"""Which KV pages are free: a NumPy stack of page ids. Page 0 is never handed out; it takes the writes of padding."""

from __future__ import annotations

import numpy as np

from worker.cache.prefix import PageIds


class PageAllocator:
    """Hands out pages 1..num_pages. The page freed last is handed out first."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._stack = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._num_free = num_pages
        self._is_free = np.ones(num_pages + 1, np.bool_)
        self._order = np.arange(num_pages, dtype=np.int32)
        self._mark = np.zeros(num_pages + 1, np.int32)

    @property
    def num_free(self) -> int:
        return self._num_free

    def alloc(self, num_pages: int) -> PageIds:
        """Take `num_pages` pages, of which there must be enough. int32 [num_pages]."""
        assert num_pages <= self._num_free, f"{num_pages} pages wanted, {self._num_free} free"
        self._num_free -= num_pages
        pages = self._stack[self._num_free : self._num_free + num_pages].copy()
        self._is_free[pages] = False
        return pages

    def free(self, pages: PageIds) -> None:
        """Give pages back. A page that is free, unknown or given twice is an AssertionError."""
        count = len(pages)
        if not count:
            return
        # Page 0 counts as free here; as unsigned, negative ids are large ones. Each check costs on every request's end.
        known = pages.view(np.uint32).max() <= self.num_pages
        assert known and not self._is_free[pages].any(), "page freed twice, or outside the pool"
        order = self._order[:count]
        self._mark[pages] = order  # of equal pages the last one wins
        assert (self._mark[pages] == order).all(), "page freed twice in one call"
        self._is_free[pages] = True
        self._stack[self._num_free : self._num_free + count] = pages
        self._num_free += count
