"""The host's copy of the page table: which pages hold the tokens of each row."""

from __future__ import annotations

import numpy as np

from worker.engine.batch import Int32s


class PageTable:
    """int32 [max_rows, pages of the longest sequence]; changed only by a batch's `page_writes`."""

    def __init__(self, *, max_rows: int, context_len: int, page_size: int) -> None:
        self._pages = np.zeros((max_rows, -(-context_len // page_size)), dtype=np.int32)
        self.page_size = page_size

    @property
    def pages(self) -> Int32s:
        """The table itself; entries past a row's length are stale, but always valid pages."""
        return self._pages

    def apply(self, page_writes: Int32s) -> None:
        """Enter (row, index in row, page) triples in order; a later one wins."""
        if len(page_writes):
            self._pages[page_writes[:, 0], page_writes[:, 1]] = page_writes[:, 2]
