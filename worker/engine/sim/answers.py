"""Tokens without a model: each is a hash of the sequence before it, so a prompt's answer never depends on batching.

The hash of a sequence is the sum of one mixed 64-bit number for each token and its position. Sums at the ends of pages
are kept by page, as a real runner keeps KV: a cached prefix is continued from its last page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from worker.engine.batch import ForwardBatch, Int32s, RowAdmission
from worker.engine.page_table import PageTable

UInt64s = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.integer]

_TOKEN_FACTOR, _POSITION_FACTOR, _SEED_FACTOR = (
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA24BAED4963EE407)
)


def _mix(values: UInt64s) -> UInt64s:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _terms(tokens: Integers, positions: Integers) -> UInt64s:
    """What each token adds to the sum of its sequence."""
    tokens, positions = tokens.astype(np.uint64), positions.astype(np.uint64)
    return _mix(tokens * _TOKEN_FACTOR + (positions + np.uint64(1)) * _POSITION_FACTOR)


class AnswerSource(Protocol):
    """Where the tokens of a pass come from."""

    def step(self, batch: ForwardBatch) -> Int32s:
        """A batch whose page writes are in the table: int32 [R], -1 where nothing is sampled."""
        ...


class OneToken:
    """Every answer is the same token again and again: for when only the time counts."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def step(self, batch: ForwardBatch) -> Int32s:
        return np.where(batch.samples, np.int32(self._token_id), np.int32(-1))


class Answers:
    """The simulated contents of the KV pool, and what follows from them. `ids` are the tokens answers are made of.

    `answer_tokens` (least, most) is how long answers are that end by themselves, with `eos_id`; None: they never do.
    Of a request's sampling parameters only its lengths, ignore_eos and its own seed matter.
    """

    def __init__(
        self,
        table: PageTable,
        *,
        num_pages: int,
        ids: Int32s,
        eos_id: int | None,
        answer_tokens: tuple[int, int] | None,
    ) -> None:
        max_rows = len(table.pages)
        self._table = table
        self._ids = ids
        self._eos_id = eos_id
        self._range = answer_tokens
        self._page_sums = np.zeros(num_pages + 1, np.uint64)
        self._sums = np.zeros(max_rows, np.uint64)  # of the tokens each row has in the cache
        self._seeds = np.zeros(max_rows, np.uint64)
        self._next = np.zeros(max_rows, np.int32)
        self._num_outputs = np.zeros(max_rows, np.int64)
        self._ends_at = np.zeros(max_rows, np.int64)  # outputs after which the row's answer ends by itself
        self._starting: dict[int, RowAdmission] = {}  # rows whose prompt is not computed yet

    def step(self, batch: ForwardBatch) -> Int32s:
        """Compute a batch whose page writes are in the table: int32 [R], -1 where nothing is sampled."""
        for admission in batch.admissions:
            self._admit(admission)
        self._decode(batch.rows[: batch.num_decode], batch.seq_lens[: batch.num_decode])
        fresh, start = {admission.row for admission in batch.admissions}, 0
        for index in range(batch.num_decode, len(batch.rows)):
            row, length, end = (int(a[index]) for a in (batch.rows, batch.query_lens, batch.seq_lens))
            if row in fresh:
                self._sums[row] = self._cached_sum(row, end - length)
            self._prefill(row, batch.prefill_ids[start : start + length], end - length)
            start += length
            if batch.samples[index]:
                self._begin_answer(self._starting.pop(row), end)
        token_ids = np.full(len(batch.rows), -1, np.int32)
        token_ids[batch.samples] = self._sample(batch.rows[batch.samples])
        return token_ids

    def _admit(self, admission: RowAdmission) -> None:
        row, seed = admission.row, admission.sampling.seed
        self._starting[row] = admission
        self._seeds[row] = 0 if seed is None else _mix(np.array([seed], np.uint64) + _SEED_FACTOR)[0]
        self._num_outputs[row] = len(admission.output_ids)

    def _cached_sum(self, row: int, num_tokens: int) -> np.uint64:
        """Of a prefix found in the cache, which is a whole number of pages."""
        size = self._table.page_size
        assert num_tokens % size == 0, f"row {row} starts inside a page"
        page = self._table.pages[row, num_tokens // size - 1] if num_tokens else 0
        return self._page_sums[page] if num_tokens else np.uint64(0)

    def _decode(self, rows: Int32s, seq_lens: Int32s) -> None:
        size = self._table.page_size
        self._sums[rows] += _terms(self._next[rows], seq_lens - 1)
        full = seq_lens % size == 0
        self._page_sums[self._table.pages[rows[full], seq_lens[full] // size - 1]] = self._sums[rows[full]]

    def _prefill(self, row: int, tokens: Int32s, start: int) -> None:
        size = self._table.page_size
        sums = np.cumsum(_terms(tokens, np.arange(start, start + len(tokens)))) + self._sums[row]
        ends = np.arange(size - 1 - start % size, len(tokens), size)  # last tokens of pages
        self._page_sums[self._table.pages[row, (start + ends) // size]] = sums[ends]
        self._sums[row] = sums[-1]

    def _begin_answer(self, admission: RowAdmission, seq_len: int) -> None:
        """The prompt is complete: settle when its answer ends, the same again after a retraction."""
        row, outputs = admission.row, admission.output_ids
        if self._range is None or self._eos_id is None or admission.sampling.ignore_eos:
            self._ends_at[row] = np.iinfo(np.int64).max
            return
        prompt = self._sums[row : row + 1] - _sum_of(outputs, seq_len - len(outputs))
        share = float(_mix(prompt ^ ~self._seeds[row])[0]) / 2.0**64
        least, most = self._range
        drawn = int(least * (most / least) ** share + 0.5)
        self._ends_at[row] = max(drawn, admission.sampling.min_new_tokens + 1)

    def _sample(self, rows: Int32s) -> Int32s:
        chosen = _mix(self._sums[rows] ^ self._seeds[rows]) % np.uint64(len(self._ids))
        tokens = self._ids[chosen.astype(np.int64)]
        self._num_outputs[rows] += 1
        if self._eos_id is not None:
            tokens[self._num_outputs[rows] >= self._ends_at[rows]] = self._eos_id
        self._next[rows] = tokens
        return tokens


def _sum_of(tokens: Sequence[int], start: int) -> UInt64s:
    """[1], what tokens from position `start` on add to a sequence's sum."""
    terms = _terms(np.array(tokens, np.int64), np.arange(start, start + len(tokens)))
    return np.array([terms.sum(dtype=np.uint64)])
