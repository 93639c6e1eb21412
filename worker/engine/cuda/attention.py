"""Attention of one pass on the GPU: decodes, prefix groups and prefill chunks, each by the kernel that suits it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from worker.attention.base import Int32s
from worker.attention.flashinfer_kernels import Backend, PagedAttention, PageIndex, Workspace
from worker.attention.kv_pool import KVPool
from worker.engine.cuda.arrays import DecodeArrays, PageLists
from worker.engine.cuda.staging import Upload
from worker.layers.cuda.merge import merge_prefix
from worker.layers.cuda.paged_decode import paged_decode
from worker.layers.cuda.rope import rotate_and_store


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A kernel's plan for the pass and the page lists it reads."""

    handle: Any | None  # None: many decodes, whose kernel is not planned
    pages: PageIndex


@dataclass(frozen=True, slots=True)
class AttentionPass:
    """Everything the layers of one pass need, on the device. `num_grouped` int32 [1] belongs to `prefix`."""

    positions: torch.Tensor  # int32 [T]
    slots: torch.Tensor  # int32 [T]
    num_decode: int  # the first tokens of the pass, padding included
    decode: PlannedRun | None = None
    prefix: PlannedRun | None = None
    num_grouped: torch.Tensor | None = None
    prefill: PlannedRun | None = None


class CudaAttention:
    """Plans passes and runs them layer by layer (`forward`, the model's view). `current` is the pass being run."""

    def __init__(
        self,
        pool: KVPool,
        cos_sin: torch.Tensor | None,
        *,
        num_heads: int,
        prefill_backend: Backend,
        device: torch.device,
    ) -> None:
        self.pool = pool
        self.cos_sin = cos_sin
        self.page_size, self._num_kv_heads, self._head_dim = pool.k.shape[-3:]
        self._num_heads = num_heads
        self.queries_per_row = num_heads // self._num_kv_heads
        self._decode = self._kernel("fa2", num_heads)
        self._prefill = self._kernel(prefill_backend, num_heads)
        # The query heads of a KV head attend to one prefix: as rows of one head they fill the kernel's tiles.
        self._prefix = self._kernel(prefill_backend, self._num_kv_heads)
        self._decode_space = Workspace(device, float_bytes=self._decode.split_bytes)
        wide = 16 if prefill_backend == "fa3" else 256 * 2**20
        self._prefill_space = Workspace(device, float_bytes=wide)
        self._prefix_space = Workspace(device, float_bytes=wide)
        self.current: AttentionPass | None = None
        self.side_by_side = True
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._forked = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._joined = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan_decode(self, arrays: DecodeArrays, pages: PageIndex, upload: Upload, *, fixed: bool) -> PlannedRun:
        """`pages` are the device twins of `arrays`. `fixed`: see `PassShape`."""
        size = len(arrays.rows)
        if size > self._decode.max_split_decodes:
            return PlannedRun(None, pages)  # `paged_decode` needs no plan
        handle = self._decode.plan(
            self._decode_space,
            upload.plan_buffer("decode"),
            query_indptr=_iota(size + 1),
            indptr=arrays.indptr,
            kv_lens=arrays.own_lens,
            num_queries=size,
            causal=False,
            fixed_shape=fixed,
        )
        return PlannedRun(handle, pages)

    def plan_prefix(
        self, lists: PageLists, pages: PageIndex, upload: Upload, *, num_rows: int, fixed: bool
    ) -> PlannedRun:
        """Prefix groups among the first `num_rows` tokens of the pass; `lists` count queries, several a token."""
        handle = self._prefix.plan(
            self._prefix_space,
            upload.plan_buffer("prefix"),
            query_indptr=lists.query_indptr,
            indptr=lists.indptr,
            kv_lens=lists.kv_lens,
            num_queries=num_rows * self.queries_per_row,
            causal=False,
            fixed_shape=fixed,
        )
        return PlannedRun(handle, pages)

    def plan_prefill(self, lists: PageLists, pages: PageIndex, upload: Upload) -> PlannedRun:
        """Prefill chunks, after the decodes of the pass."""
        handle = self._prefill.plan(
            self._prefill_space,
            upload.plan_buffer("prefill"),
            query_indptr=lists.query_indptr,
            indptr=lists.indptr,
            kv_lens=lists.kv_lens,
            num_queries=int(lists.query_indptr[-1]),
            causal=True,
        )
        return PlannedRun(handle, pages)

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]. q and k are rotated here
        if there is a `cos_sin`."""
        now = self.current
        assert now is not None
        keys, values = self.pool.k[layer], self.pool.v[layer]
        rotated = torch.empty((len(q), self._num_heads, self._head_dim), dtype=q.dtype, device=q.device)
        packed = torch.empty_like(rotated) if now.prefix is not None else None
        rotate_and_store(q, k, v, self.cos_sin, now.positions, now.slots, keys, values, rotated, packed_out=packed)
        out = torch.empty_like(rotated)
        count = now.num_decode
        both = now.decode is not None and now.prefill is not None and self.side_by_side
        if now.prefill is not None:
            with self._beside() if both else nullcontext():
                self._attend_chunks(now.prefill, rotated[count:], keys, values, out[count:])
        if now.decode is not None:
            self._attend_decodes(now, rotated[:count], packed, keys, values, out[:count])
        if both:
            torch.cuda.current_stream().wait_event(self._joined)
        return out.flatten(1)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Launch on a second stream: chunks and prefixes are bound by arithmetic, decodes by memory, so they share the
        GPU well. `_joined` tells when it is done."""
        self._forked.record()
        self._side.wait_event(self._forked)
        with torch.cuda.stream(self._side):
            yield
            self._joined.record()

    def _attend_chunks(
        self, run: PlannedRun, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        self._prefill.run(self._prefill_space, run.handle, q, keys, values, run.pages, out, None, causal=True)

    def _attend_decodes(
        self,
        now: AttentionPass,
        q: torch.Tensor,
        packed: torch.Tensor | None,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        run, prefix = now.decode, now.prefix
        assert run is not None
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        if prefix is None:
            self._attend_own(run, q, keys, values, out, lse)
            return
        assert packed is not None and now.num_grouped is not None
        queries = packed[: len(q)].view(-1, self._num_kv_heads, self._head_dim)
        prefix_out = torch.empty_like(queries)
        prefix_lse = torch.empty(queries.shape[:2], dtype=torch.float32, device=q.device)
        with self._beside() if self.side_by_side else nullcontext():
            self._prefix.run(
                self._prefix_space,
                prefix.handle,
                queries,
                keys,
                values,
                prefix.pages,
                prefix_out,
                prefix_lse,
                causal=False,
            )
        self._attend_own(run, q, keys, values, out, lse)
        if self.side_by_side:
            torch.cuda.current_stream().wait_event(self._joined)
        merge_prefix(
            out, lse, prefix_out.view(q.shape), prefix_lse.view(lse.shape), now.num_grouped, self._num_kv_heads
        )

    def _attend_own(
        self,
        run: PlannedRun,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """Each decode over its own pages."""
        pages = run.pages
        if run.handle is None:
            paged_decode(q, keys, values, pages.indptr, pages.indices, pages.last_page_lens, out, lse)
        else:
            self._decode.run(self._decode_space, run.handle, q, keys, values, pages, out, lse, causal=False)

    def _kernel(self, backend: Backend, num_heads: int) -> PagedAttention:
        return PagedAttention(
            backend,
            num_heads=num_heads,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            page_size=self.page_size,
            dtype=self.pool.k.dtype,
        )


def _iota(length: int) -> Int32s:
    return np.arange(length, dtype=np.int32)
