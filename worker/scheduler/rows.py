"""The request table: one row for each request in the KV pool, with its pages, outputs and counters as arrays by row.

The runner keeps a copy of the pages on its device: the next step carries every entry that has changed here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.cache.prefix import NO_PAGES, PageIds
from worker.engine.batch import Bools, Int32s
from worker.scheduler.request import NO_ROW, Request
from worker.token_ids import TOKEN_BYTES

Int64s = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]
_OUTPUT_COLUMNS = 256  # of the outputs, at the start


class RequestTable:
    """Rows 0..max_rows-1. All counters are int64 [max_rows]; those of a free row mean nothing."""

    def __init__(self, max_rows: int, max_tokens: int, page_size: int) -> None:
        self.page_size = page_size
        # Untouched rows cost no memory: the system maps zero pages on first write.
        self._pages = np.zeros((max_rows, -(-max_tokens // page_size)), np.int32)
        self._indices = np.arange(self._pages.shape[1], dtype=np.int32)
        # Entries changed since the last step: runs of (row, first index, number), and arrays of rows and indices.
        self._changed_runs: list[tuple[int, int, int]] = []
        self._changed: list[tuple[Integers, Integers]] = []
        self._free = list(range(max_rows - 1, -1, -1))
        # Objects by row, so that those of many rows are found in one go. None in free rows.
        self._requests = np.full(max_rows, None, object)
        self.rids = np.full(max_rows, None, object)
        self.num_released = 0
        # Grows when a row is released: tells a step's request from a later one in the same row.
        self.epoch = np.zeros(max_rows, np.int64)
        self.in_use = np.zeros(max_rows, np.bool_)
        self.decoding = np.zeros(max_rows, np.bool_)  # its last prefill chunk is launched
        self.num_pages = np.zeros(max_rows, np.int64)
        self.shared_pages = np.zeros(max_rows, np.int64)  # the first ones, which belong to the prefix cache
        self.seq_len = np.zeros(max_rows, np.int64)  # tokens in the KV cache once launched steps are done
        self.computed_len = np.zeros(max_rows, np.int64)  # of these, tokens of steps known to have succeeded
        self.num_launched = np.zeros(max_rows, np.int64)  # outputs, once launched steps are done
        self.num_outputs = np.zeros(max_rows, np.int64)  # outputs known
        self._outputs = np.zeros((max_rows, _OUTPUT_COLUMNS), np.int32)  # made wider when a request has more
        self.prompt_len = np.zeros(max_rows, np.int64)
        self.rank = np.zeros(max_rows, np.int64)
        self.arrival = np.zeros(max_rows, np.int64)
        self.max_new = np.zeros(max_rows, np.int64)
        self.min_new = np.zeros(max_rows, np.int64)
        self.ignore_eos = np.zeros(max_rows, np.bool_)
        self.num_constrained = self.num_scored = 0  # used rows of these two kinds: mostly none
        self.constrained = np.zeros(max_rows, np.bool_)  # has a grammar
        self.awaits_mask = np.zeros(max_rows, np.bool_)  # of its next token
        self.scored = np.zeros(max_rows, np.bool_)  # wants log-probabilities
        # With fewer outputs than that, a new token is news by itself unless it is EOS.
        self.surely_goes_on = np.zeros(max_rows, np.int64)

    @property
    def num_free_rows(self) -> int:
        return len(self._free)

    @property
    def num_used_rows(self) -> int:
        return len(self._requests) - len(self._free)

    @property
    def own_pages(self) -> int:
        """Pages of requests that are not the prefix cache's."""
        return int((self.num_pages - self.shared_pages)[self.in_use].sum())

    def request(self, row: int) -> Request:
        """The request in a used row."""
        request: Request | None = self._requests[row]
        assert request is not None, f"row {row} is free"
        return request

    def requests(self, rows: Integers) -> list[Request]:
        """The requests in used rows, in order."""
        requests: list[Request] = self._requests[rows].tolist()
        return requests

    def used_rows(self) -> Int64s:
        return np.flatnonzero(self.in_use)

    def decodable_rows(self) -> Int64s:
        """Rows whose next step is a decode: prefill launched, not all allowed outputs launched yet, no mask awaited."""
        decodable = self.decoding & (self.num_launched < self.max_new)
        return np.flatnonzero(decodable & ~self.awaits_mask if self.num_constrained else decodable)

    def live(self, rows: Integers, epochs: Int64s) -> Bools:
        """Which rows still hold the request they held at these epochs."""
        return np.equal(self.epoch[rows], epochs)

    def acquire(self, request: Request, shared: PageIds = NO_PAGES) -> int:
        """Give a request a row. It starts with the pages of its cached prefix."""
        row = self._free.pop()
        request.row = row
        self._requests[row] = request
        self.rids[row] = request.rid
        self.in_use[row] = True
        self.num_pages[row] = self.shared_pages[row] = len(shared)
        self.seq_len[row] = self.computed_len[row] = len(shared) * self.page_size
        self._write(row, 0, shared)
        self.num_launched[row] = self.num_outputs[row] = request.num_kept_outputs
        if request.num_kept_outputs:
            self._widen(request.num_kept_outputs)
            self._outputs[row, : request.num_kept_outputs] = request.kept_output_ids
        self.prompt_len[row] = request.prompt_len
        self.rank[row] = request.rank
        self.arrival[row] = request.arrival_index
        self.max_new[row] = request.max_new_tokens
        self.min_new[row] = request.sampling.min_new_tokens
        self.ignore_eos[row] = request.sampling.ignore_eos
        sampling = request.sampling
        self.scored[row] = scored = sampling.logprobs is not None
        self.constrained[row] = constrained = request.grammar is not None
        self.num_scored += scored
        self.num_constrained += constrained
        always_special = sampling.stop_token_ids or sampling.logprobs is not None or request.grammar is not None
        self.surely_goes_on[row] = 0 if always_special else request.max_new_tokens
        return row

    def release(self, request: Request) -> None:
        """Take a request's row back. What happens to its pages is the caller's business."""
        row = request.row
        assert self._requests[row] is request, f"row {row} is not {request.rid}'s"
        request.row = NO_ROW
        self._requests[row] = self.rids[row] = None
        self.num_scored -= request.sampling.logprobs is not None
        self.num_constrained -= request.grammar is not None
        self._free.append(row)
        self.in_use[row] = self.decoding[row] = self.awaits_mask[row] = False
        self.epoch[row] += 1
        self.num_released += 1

    def append_outputs(self, rows: Int64s, token_ids: Int32s) -> Int64s:
        """One more output for each row. Returns how many each has now."""
        before = self.num_outputs[rows]
        num_outputs = before + 1
        if len(rows):
            self._widen(int(num_outputs.max()))
        self._outputs[rows, before] = token_ids
        self.num_outputs[rows] = num_outputs
        return num_outputs

    def num_outputs_of(self, request: Request) -> int:
        """Outputs of a request, whether it has a row or waits."""
        return request.num_kept_outputs if request.row == NO_ROW else int(self.num_outputs[request.row])

    def key_of(self, request: Request, num_tokens: int) -> bytes:
        """The first `num_tokens` tokens of prompt and outputs of a request with a row, as int32 bytes."""
        wanted = num_tokens - request.prompt_len
        if wanted <= 0:
            return request.prompt_key[: TOKEN_BYTES * num_tokens]
        assert wanted <= self.num_outputs[request.row], f"{request.rid} has fewer outputs than {wanted}"
        return request.prompt_key + self._outputs[request.row, :wanted].tobytes()

    def pages_of(self, row: int) -> PageIds:
        """The pages of a row, in order; a view."""
        return self._pages[row, : self.num_pages[row]]

    def pages_missing(self, row: int, num_tokens: int) -> int:
        """Pages a row needs on top of its own to hold `num_tokens` tokens."""
        return int(-(-num_tokens // self.page_size) - self.num_pages[row])

    def set_pages(self, row: int, start: int, pages: PageIds) -> None:
        """Replace or append the pages from index `start` on."""
        self._write(row, start, pages)
        if start + len(pages) > self.num_pages[row]:
            self.num_pages[row] = start + len(pages)

    def rows_opening_page(self, rows: Int64s) -> Int64s:
        """Those of `rows` whose next token needs a new page."""
        return np.compress(self.seq_len[rows] == self.num_pages[rows] * self.page_size, rows)

    def append_page(self, rows: Int64s, pages: PageIds) -> None:
        """One more page for each row."""
        index = self.num_pages[rows]
        self._pages[rows, index] = pages
        self.num_pages[rows] += 1
        self._changed.append((rows, index))

    def pages_for_more(self, rows: Int64s, num_tokens: int) -> Int64s:
        """Pages each row needs on top of its own for so many more tokens."""
        missing: Int64s = -(-(self.seq_len[rows] + num_tokens) // self.page_size) - self.num_pages[rows]
        return np.maximum(missing, 0)

    def append_pages(self, rows: Int64s, counts: Int64s, pages: PageIds) -> None:
        """`counts` more pages for each row; `pages` are those of all rows, in order."""
        owners = np.repeat(rows, counts)
        ends = np.cumsum(counts)
        index = np.arange(len(pages)) - np.repeat(ends - counts, counts) + self.num_pages[owners]
        self._pages[owners, index] = pages
        self.num_pages[rows] += counts
        self._changed.append((owners, index))

    def repeat_output(self, rows: Int64s, token_id: int, count: int) -> None:
        """The same token as the next `count` outputs of each row."""
        before = self.num_outputs[rows]
        self._widen(int(before.max()) + count)
        for row, start in zip(rows.tolist(), before.tolist(), strict=True):
            self._outputs[row, start : start + count] = token_id
        self.num_outputs[rows] = before + count

    def take_writes(self) -> Int32s:
        """Entries changed since the last call, as they are now; one may occur twice. int32 [W, 3] of
        (row, index, page)."""
        changed, self._changed = self._changed, []
        runs, self._changed_runs = self._changed_runs, []
        writes = np.empty((sum([len(rows) for rows, _ in changed]) + sum([count for _, _, count in runs]), 3), np.int32)
        end = 0
        for rows, index in changed:
            start, end = end, end + len(rows)
            writes[start:end, 0], writes[start:end, 1] = rows, index
        for row, first, count in runs:
            start, end = end, end + count
            writes[start:end, 0], writes[start:end, 1] = row, self._indices[first : first + count]
        writes[:, 2] = self._pages[writes[:, 0], writes[:, 1]]
        return writes

    def rewrite(self, writes: Int32s) -> None:
        """Send the entries of `writes` again, as they are then: the step that carried them failed."""
        self._changed.append((writes[:, 0], writes[:, 1]))

    def _widen(self, num_outputs: int) -> None:
        """Make room for that many outputs in a row."""
        columns = self._outputs.shape[1]
        if num_outputs > columns:
            wider = np.zeros((len(self._outputs), max(2 * columns, num_outputs)), np.int32)
            wider[:, :columns] = self._outputs
            self._outputs = wider

    def _write(self, row: int, start: int, pages: PageIds) -> None:
        if len(pages):
            self._pages[row, start : start + len(pages)] = pages
            self._changed_runs.append((row, start, len(pages)))
