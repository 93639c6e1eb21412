"""The steps that benchmarks/step_times.py measures: prefill, decode, both at once, and decodes that share prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from worker.engine.batch import ForwardBatch, RowAdmission, RunnerInfo
from worker.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)

DECODES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
UNCAPTURED_DECODES = (576, 640, 768)
CONTEXTS = (128, 512, 1024, 1600, 2048, 4096, 8192, 16_384, 32_768)
CHUNKS = (16, 128, 256, 512, 1024, 2048, 4096, 8192)
CHUNK_CONTEXTS = (0, 1024, 4096, 16_384, 32_000)
MANY_CHUNKS = ((8, 1024, 0), (16, 512, 0), (32, 256, 0), (64, 128, 0), (16, 128, 2048), (4, 2048, 0), (64, 16, 1024))
MIXED = tuple((decodes, context) for decodes in (8, 64, 128, 256, 448) for context in (512, 1280))
PREFIX_GROUPS = (  # groups, members, shared tokens, own tokens
    (8, 64, 2048, 192),
    (8, 64, 2048, 64),
    (4, 64, 4096, 256),
    (2, 128, 2048, 128),
    (16, 16, 2048, 128),
    (16, 32, 1024, 128),
    (1, 256, 4096, 128),
    (1, 64, 8192, 128),
)


@dataclass(frozen=True, slots=True)
class Sequence:
    """`tokens` computed, after `context` tokens. Sequences of one `group` share their first `shared` tokens."""

    tokens: int
    context: int
    shared: int = 0
    group: int = 0

    @property
    def length(self) -> int:
        return self.context + self.tokens


@dataclass(frozen=True, slots=True)
class Case:
    """One step."""

    kind: str
    decodes: tuple[Sequence, ...] = ()
    chunks: tuple[Sequence, ...] = ()

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return self.decodes + self.chunks

    def num_pages(self, page_size: int) -> int:
        """KV pages the step needs, a shared prefix counted once."""
        groups = {(s.group, s.shared) for s in self.decodes if s.shared}
        own = sum(-(-s.length // page_size) - s.shared // page_size for s in self.sequences)
        return own + sum(shared // page_size for _, shared in groups)

    def fits(self, info: RunnerInfo, max_pool_tokens: int) -> bool:
        """Whether a runner can compute it."""
        return (
            len(self.sequences) <= info.max_rows
            and self.num_pages(info.page_size) <= min(max_pool_tokens // info.page_size, info.num_pages)
            and max(s.length for s in self.sequences) < info.context_len
        )


def cases() -> Iterator[Case]:
    """All of them, for a large GPU; those a device cannot hold are left out later."""
    for count in DECODES + UNCAPTURED_DECODES:
        for context in CONTEXTS:
            yield Case("single" if count == 1 else "decode", _decodes(count, context))
    for tokens in CHUNKS:
        for context in CHUNK_CONTEXTS:
            yield Case("prefill", chunks=(Sequence(tokens, context),))
    for count, tokens, context in MANY_CHUNKS:
        yield Case("prefill", chunks=(Sequence(tokens, context),) * count)
    for count, context in MIXED:
        for tokens in CHUNKS:
            yield Case("mixed", _decodes(count, context), (Sequence(tokens, 0),))
    for groups, members, shared, own in PREFIX_GROUPS:
        decodes = tuple(Sequence(1, shared + own - 1, shared, group) for group in range(groups) for _ in range(members))
        yield Case("shared prefix", decodes)
        yield Case("shared prefix mixed", decodes, (Sequence(1024, 0),))


def _decodes(count: int, context: int) -> tuple[Sequence, ...]:
    return (Sequence(1, context - 1),) * count


class BatchBuilder:
    """Turns cases into batches. `batch(case)` sets up its rows; `again` is the same step once more."""

    def __init__(self, info: RunnerInfo, seed: int = 0) -> None:
        self._info = info
        self._random = np.random.default_rng(seed)
        self._step_id = 0

    def batch(self, case: Case) -> ForwardBatch:
        """The step with the page writes and admissions it needs."""
        sequences = case.sequences
        writes = self._page_writes(sequences)
        rows = np.arange(len(sequences), dtype=np.int32)
        num_prefill = sum(s.tokens for s in case.chunks)
        return self._next(
            rows=rows,
            query_lens=np.array([s.tokens for s in sequences], np.int32),
            seq_lens=np.array([s.length for s in sequences], np.int32),
            num_decode=len(case.decodes),
            prefill_ids=self._random.integers(1, self._info.vocab_size, num_prefill).astype(np.int32),
            samples=np.ones(len(sequences), np.bool_),
            page_writes=writes,
            admissions=tuple(RowAdmission(row, GREEDY, 0, ()) for row in rows.tolist()),
        )

    def again(self, batch: ForwardBatch) -> ForwardBatch:
        """The same step for rows that are set up."""
        return self._next(
            rows=batch.rows,
            query_lens=batch.query_lens,
            seq_lens=batch.seq_lens,
            num_decode=batch.num_decode,
            prefill_ids=batch.prefill_ids,
            samples=batch.samples,
            page_writes=np.empty((0, 3), np.int32),
            admissions=(),
        )

    def fill(self, num_pages: int, chunk_tokens: int) -> Iterator[ForwardBatch]:
        """Prompts that leave real keys and values in the first pages, which hold whatever memory held before."""
        size = self._info.page_size
        most = min(chunk_tokens, self._info.context_len - 1) // size
        for first in range(0, num_pages, most):
            count = min(most, num_pages - first)
            pages = np.arange(first + 1, first + count + 1)
            index = np.arange(count)
            yield self._next(
                rows=np.zeros(1, np.int32),
                query_lens=np.array([count * size], np.int32),
                seq_lens=np.array([count * size], np.int32),
                num_decode=0,
                prefill_ids=self._random.integers(1, self._info.vocab_size, count * size).astype(np.int32),
                samples=np.ones(1, np.bool_),
                page_writes=np.stack((np.zeros(count, np.int64), index, pages), axis=1).astype(np.int32),
                admissions=(RowAdmission(0, GREEDY, 0, ()),),
            )

    def _next(self, **fields: object) -> ForwardBatch:
        self._step_id += 1
        return ForwardBatch(step_id=self._step_id, **fields)  # type: ignore[arg-type]

    def _page_writes(self, sequences: tuple[Sequence, ...]) -> np.ndarray:
        size, next_page = self._info.page_size, 1
        heads: dict[int, np.ndarray] = {}
        writes = []
        for row, sequence in enumerate(sequences):
            head = np.empty(0, np.int64)
            if sequence.shared:
                if sequence.group not in heads:
                    heads[sequence.group] = np.arange(next_page, next_page + sequence.shared // size)
                    next_page += sequence.shared // size
                head = heads[sequence.group]
            own = -(-sequence.length // size) - len(head)
            pages = np.concatenate((head, np.arange(next_page, next_page + own)))
            next_page += own
            writes.append(np.stack((np.full(len(pages), row), np.arange(len(pages)), pages), axis=1))
        assert next_page <= self._info.num_pages + 1, "the case does not fit the pool"
        return np.concatenate(writes).astype(np.int32)
