"""From a scheduler's batch to a pass on the device: its arrays staged, its attention planned, its forward computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.attention.flashinfer_kernels import PageIndex
from worker.engine import inputs
from worker.engine.batch import ForwardBatch
from worker.engine.cuda.arrays import PageLists, decode_arrays, page_lists, prefix_lists
from worker.engine.cuda.attention import AttentionPass, CudaAttention, PlannedRun
from worker.engine.cuda.cascade import MAX_GROUPS, Grouping
from worker.engine.cuda.single_decode import SingleDecode
from worker.engine.cuda.staging import Upload
from worker.engine.page_table import PageTable
from worker.layers.cuda.argmax import argmax_into
from worker.layers.cuda.tables import decode_inputs, write_pages
from worker.models.decoder import Decoder

# int32s a pass stages beside its page lists: for each decode, each token and each group
_PER_DECODE, _PER_TOKEN, _PER_GROUP, _SLACK = 16, 4, 4, 256
_GRAPH_PAGE_WRITES = 1 << 16  # a decode that carries more runs without a graph

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PassShape:
    """How a pass runs: `size` decodes with padding, with prefix groups or not.

    `fixed`: its memory and kernels depend on `size` and `cascade` alone, so that a graph can hold it. Passes that could
    be graphs but run without one are of this kind too: both then compute the same numbers.
    """

    size: int
    fixed: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class DevicePass:
    """A pass on its way to the device. Outcome i is the next token of the batch's sequence `sequences[i]`."""

    ids: torch.Tensor  # int32 [T]; a kernel fills in those of the decodes
    rows: torch.Tensor  # int32 [B], decodes
    seq_lens: torch.Tensor  # int32 [B]
    first_pages: torch.Tensor  # int32 [B]
    page_writes: torch.Tensor  # int32 [W, 3]
    attention: AttentionPass
    sampled: torch.Tensor | None  # int32 [S], which tokens are sampled from; None = all, decodes only
    sampled_rows: torch.Tensor  # int32 [S], their rows of the request table
    token_ids: torch.Tensor  # int32 [S], the outcome
    sequences: Int64s  # [S], or fewer where padding follows


class Passes:
    """Builds passes and computes them. Owns the device's page table and next-token table."""

    def __init__(self, model: Decoder, attention: CudaAttention, table: PageTable, *, device: torch.device) -> None:
        self._model = model
        self._attention = attention
        self._single = SingleDecode.of(model, attention.pool, attention.cos_sin)
        self._table = table
        max_rows, max_pages = table.pages.shape
        self.dummy_row = max_rows
        self._device_table = torch.zeros((max_rows + 1, max_pages), dtype=torch.int32, device=device)
        self.next_tokens = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self._decode_pages = torch.zeros(max_rows * max_pages + 1, dtype=torch.int32, device=device)

    def staging_size(self, batch: ForwardBatch, grouping: Grouping, size: int) -> int:
        """Upper bound of the int32s that `build` stages."""
        chunks = batch.seq_lens[batch.num_decode :].astype(np.int64)
        pages = int((-(-chunks // self._table.page_size)).sum()) + sum(len(group.pages) for group in grouping.groups)
        per_row = _PER_DECODE * (size + len(batch.rows)) + _PER_GROUP * MAX_GROUPS
        return pages + per_row + _PER_TOKEN * batch.num_tokens + batch.page_writes.size + _SLACK

    def max_graph_staging(self, max_size: int) -> int:
        """What `staging_size` can be for a batch of up to `max_size` decodes with few page writes."""
        groups = MAX_GROUPS * (int(self._table.pages.shape[1]) + _PER_GROUP)
        return groups + 2 * (_PER_DECODE + _PER_TOKEN) * max_size + _SLACK + _GRAPH_PAGE_WRITES * 3

    def build(self, batch: ForwardBatch, grouping: Grouping, shape: PassShape, upload: Upload) -> DevicePass:
        """Stage the arrays, send them, plan attention. Decodes stand in the order of `grouping`.

        What a fixed pass reads is staged first and has lengths that `shape` gives, except the prefix groups' page
        lists, of which it knows only where they start.
        """
        size, order, count = shape.size, grouping.order, batch.num_decode
        arrays = decode_arrays(
            batch.rows[:count][order],
            batch.seq_lens[:count][order],
            grouping.first_pages,
            page_size=self._table.page_size,
            size=size,
            dummy_row=self.dummy_row,
        )
        rows, seq_lens, first_pages = (upload.add(a) for a in (arrays.rows, arrays.seq_lens, arrays.first_pages))
        pages = PageIndex(
            query_indptr=upload.add(np.arange(size + 1, dtype=np.int32)),
            indptr=upload.add(arrays.indptr),
            indices=self._decode_pages,
            last_page_lens=upload.add(arrays.last_page_lens),
        )
        num_grouped = upload.add(np.array([grouping.num_grouped], np.int32))
        token_ids = upload.reserve(size + len(batch.rows) - count)
        ids, positions, slots = self._add_tokens(batch, size, upload)
        prefix = self._add_prefix(grouping, upload) if shape.cascade else None
        chunks = self._add_chunks(batch, upload)
        sampled, sampled_rows, sequences = self._add_sampled(batch, order, size, rows, upload)
        page_writes = self._add_page_writes(batch, upload)
        upload.send()
        decode_run = self._attention.plan_decode(arrays, pages, upload, fixed=shape.fixed) if size else None
        return DevicePass(
            ids=ids,
            rows=rows,
            seq_lens=seq_lens,
            first_pages=first_pages,
            page_writes=page_writes,
            attention=AttentionPass(
                positions=positions,
                slots=slots,
                num_decode=size,
                decode=decode_run,
                prefix=self._plan_prefix(prefix, shape, upload),
                num_grouped=num_grouped,
                prefill=self._attention.plan_prefill(*chunks, upload) if chunks is not None else None,
            ),
            sampled=sampled,
            sampled_rows=sampled_rows,
            token_ids=token_ids[: len(sampled_rows)],
            sequences=sequences,
        )

    def enter_pages(self, work: DevicePass) -> None:
        """Bring the device's page table up to date; before `compute`."""
        write_pages(self._device_table, work.page_writes)

    def compute(self, work: DevicePass) -> torch.Tensor | None:
        """Forward and greedy choice: fills `work.token_ids` and the next-token table. Only launches kernels.

        Returns the final hidden states [T, hidden size]; None where kernels for one decode alone skip making them.
        """
        if len(work.rows):
            decode_inputs(
                self._device_table,
                self.next_tokens,
                work.rows,
                work.seq_lens,
                work.first_pages,
                work.attention.decode.pages.indptr if work.attention.decode else work.rows,
                work.ids,
                work.attention.positions,
                work.attention.slots,
                self._decode_pages,
                self._table.page_size,
            )
        if self._single is not None and work.sampled is None and len(work.rows) == 1:
            logits = self._single.logits(work.ids, work.attention)
            argmax_into(logits, work.sampled_rows, work.token_ids, self.next_tokens)
            return None
        hidden = self._hidden(work)
        if len(work.sampled_rows):
            logits = self._model.logits(hidden if work.sampled is None else hidden.index_select(0, work.sampled))
            argmax_into(logits, work.sampled_rows, work.token_ids, self.next_tokens)
        return hidden

    def _hidden(self, work: DevicePass) -> torch.Tensor:
        self._attention.current = work.attention
        return self._model.forward(work.ids, work.attention.positions, self._attention)

    def _add_tokens(
        self, batch: ForwardBatch, size: int, upload: Upload
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids, positions and cache slots of all tokens; those of decodes are left to the device."""
        if not len(batch.prefill_ids):
            return upload.reserve(size), upload.reserve(size), upload.reserve(size)
        chunks = slice(batch.num_decode, None)
        positions = inputs.positions(batch)[chunks]
        rows = np.repeat(batch.rows[chunks], batch.query_lens[chunks])
        page_size = self._table.page_size
        slots = self._table.pages[rows, positions // page_size] * page_size + positions % page_size
        blank = np.zeros(size, np.int32)
        ids, places, cells = (np.concatenate((blank, x), dtype=np.int32) for x in (batch.prefill_ids, positions, slots))
        return upload.add(ids), upload.add(places), upload.add(cells)

    def _add_prefix(self, grouping: Grouping, upload: Upload) -> tuple[PageLists, PageIndex]:
        lists = prefix_lists(
            [(len(group.members), group.pages) for group in grouping.groups],
            num_groups=MAX_GROUPS,
            queries_per_row=self._attention.queries_per_row,
            page_size=self._table.page_size,
        )
        return lists, _add_lists(lists, upload)

    def _plan_prefix(
        self, prefix: tuple[PageLists, PageIndex] | None, shape: PassShape, upload: Upload
    ) -> PlannedRun | None:
        if prefix is None:
            return None
        return self._attention.plan_prefix(*prefix, upload, num_rows=shape.size, fixed=shape.fixed)

    def _add_chunks(self, batch: ForwardBatch, upload: Upload) -> tuple[PageLists, PageIndex] | None:
        if not len(batch.prefill_ids):
            return None
        chunks = slice(batch.num_decode, None)
        lists = page_lists(
            self._table.pages,
            batch.rows[chunks],
            batch.query_lens[chunks],
            batch.seq_lens[chunks],
            self._table.page_size,
        )
        return lists, _add_lists(lists, upload)

    def _add_sampled(
        self, batch: ForwardBatch, order: Int64s, size: int, rows: torch.Tensor, upload: Upload
    ) -> tuple[torch.Tensor | None, torch.Tensor, Int64s]:
        if not len(batch.prefill_ids):
            return None, rows, order
        ends = np.cumsum(batch.query_lens)[batch.num_decode :] - 1
        finished = np.flatnonzero(batch.samples[batch.num_decode :])
        sequences = np.concatenate((order, batch.num_decode + finished))
        tokens = np.concatenate((np.arange(size), ends[finished]), dtype=np.int32)
        return upload.add(tokens), upload.add(batch.rows[sequences]), sequences

    def _add_page_writes(self, batch: ForwardBatch, upload: Upload) -> torch.Tensor:
        """The host's table has them already; writes to the same place get the same, final page."""
        writes = batch.page_writes.copy()
        writes[:, 2] = self._table.pages[writes[:, 0], writes[:, 1]]
        return upload.add(writes.ravel()).view(len(writes), 3)


def _add_lists(lists: PageLists, upload: Upload) -> PageIndex:
    """The list whose length varies goes last."""
    query_indptr, indptr = upload.add(lists.query_indptr), upload.add(lists.indptr)
    last_page_lens = upload.add(lists.last_page_lens)
    return PageIndex(query_indptr, indptr, upload.add(lists.indices), last_page_lens)
