"""Which KV pages are free: a NumPy stack of page ids. Page 0 is never handed out; it takes the writes of padding."""

from __future__ import annotations

import numpy as np

from worker.cache.prefix import PageIds

_TAKEN = -1


class PageAllocator:
    """Hands out pages 1..num_pages. The page freed last is handed out first.

    Pages given back are checked and stacked together, before any is handed out again: both cost as much for one request
    as for all that end in a step.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = num_pages
        self._stack = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._stacked = num_pages
        self._returned: list[PageIds] = []
        # Where each page lies in the stack, or _TAKEN. Page 0 counts as free.
        self._place = np.arange(num_pages, -1, -1, dtype=np.int32)
        self._places = np.arange(num_pages, dtype=np.int32)

    def alloc(self, num_pages: int) -> PageIds:
        """Take `num_pages` pages, of which there must be enough. int32 [num_pages]. An AssertionError if pages given
        back before were free, unknown or given twice."""
        assert num_pages <= self.num_free, f"{num_pages} pages wanted, {self.num_free} free"
        self._settle()
        self.num_free -= num_pages
        self._stacked = self.num_free
        pages = self._stack[self.num_free : self.num_free + num_pages].copy()
        self._place[pages] = _TAKEN
        return pages

    def free(self, pages: PageIds) -> None:
        """Give pages back; the array must not change afterwards."""
        if len(pages):
            self._returned.append(pages)
            self.num_free += len(pages)

    def free_pages(self) -> PageIds:
        """All free pages, checked as `alloc` does it. For audits."""
        self._settle()
        return self._stack[: self.num_free].copy()

    def _settle(self) -> None:
        """Check and stack what was given back."""
        if not self._returned:
            return
        pages = np.concatenate(self._returned)
        self._returned.clear()
        index = pages.view(np.uint32).astype(np.intp)  # as unsigned, negative ids are large ones
        try:
            taken = self._place.take(index)
        except IndexError as error:
            raise AssertionError("page outside the pool freed") from error
        assert taken.max() == _TAKEN, "page freed twice, or outside the pool"
        assert self.num_free <= self.num_pages, "page freed twice"
        places = self._places[self._stacked : self.num_free]
        self._place[index] = places
        assert (self._place.take(index) == places).all(), "page freed twice"  # of equal pages the last one wins
        self._stack[self._stacked : self.num_free] = pages
        self._stacked = self.num_free
