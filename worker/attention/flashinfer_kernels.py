"""flashinfer's paged attention kernels, called below its wrapper classes.

The wrappers copy index arrays from pageable memory when they plan, which waits for everything that runs on the GPU.
Here a plan is made from host arrays into pinned memory that the caller lends, so planning never waits. This is the
only file that knows flashinfer's internals: its calls are those of version 0.6.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from common.errors import UserError
from worker.attention.base import Int32s

Backend = Literal["fa2", "fa3"]

HEAD_DIMS = (64, 128, 256)  # that the kernels are built for

_KNOWN_VERSION = "0.6.8"
_NHD = 0
_NON_CAUSAL, _CAUSAL = 0, 1
_PLAN_BYTES = 8 * 2**20  # flashinfer's own choice
_SPLIT_TILE_ROWS = 16  # queries in a block of decodes
_BLOCKS_PER_SM = 2


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Device twins of the page lists that a kernel reads, int32: N sequences with their queries and pages."""

    query_indptr: torch.Tensor  # [N + 1]
    indptr: torch.Tensor  # [N + 1]
    indices: torch.Tensor
    last_page_lens: torch.Tensor  # [N]


class Workspace:
    """Device memory for the plans and partial results of one kernel; passes use it in stream order."""

    def __init__(self, device: torch.device, *, float_bytes: int = 16) -> None:
        self.plan = torch.empty(_PLAN_BYTES, dtype=torch.uint8, device=device)
        self.partial = torch.zeros(float_bytes, dtype=torch.uint8, device=device)


def pinned_plan_buffer() -> torch.Tensor:
    """Host memory for one plan; free for another as soon as its copy to the device is done."""
    return torch.empty(_PLAN_BYTES, dtype=torch.uint8, pin_memory=True)


class PagedAttention:
    """One kernel family of flashinfer for one head geometry: `plan` per pass, `run` per layer."""

    def __init__(
        self,
        backend: Backend,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        scale: float | None = None,
    ) -> None:
        self.backend = backend
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._page_size = page_size
        self._scale = scale if scale is not None else 1.0 / math.sqrt(head_dim)
        self._module = _load(backend, dtype, head_dim)

    @property
    def max_split_decodes(self) -> int:
        """With more decodes than this, every block of the GPU has one anyway and no sequence is split."""
        sms = int(torch.cuda.get_device_properties().multi_processor_count)
        return _BLOCKS_PER_SM * sms // self.num_kv_heads

    @property
    def split_bytes(self) -> int:
        """Device memory for the partial results of decodes whose sequences are split."""
        rows = self.max_split_decodes
        tiles = rows + -(-rows * self.num_heads // self.num_kv_heads // _SPLIT_TILE_ROWS)
        return self.num_heads * tiles * _SPLIT_TILE_ROWS * (self._head_dim + 1) * 4 + 2**20

    def plan(
        self,
        workspace: Workspace,
        pinned: torch.Tensor,
        *,
        query_indptr: Int32s,
        indptr: Int32s,
        kv_lens: Int32s,
        num_queries: int,
        causal: bool,
        fixed_shape: bool = False,
    ) -> Any:
        """Cut the work of N sequences for the GPU's blocks; starts the copy of the plan and returns a handle for `run`.

        `fixed_shape`: a launch captured with this handle serves every later plan of as many sequences with at most
        `num_queries` queries.
        """
        arguments: list[Any] = [
            workspace.partial,
            workspace.plan,
            pinned,
            torch.from_numpy(query_indptr),
            torch.from_numpy(indptr),
            torch.from_numpy(np.ascontiguousarray(kv_lens)),
            num_queries,
            len(kv_lens),
            self.num_heads,
            self.num_kv_heads,
            self._page_size,
            fixed_shape,
            self._head_dim,
            self._head_dim,
            causal,
            -1,  # no sliding window
        ]
        if self.backend == "fa2":
            arguments += [-1, False, 0]  # no fixed split size, splitting allowed, no blocks of another kernel beside
        return self._module.plan(*arguments)

    def run(
        self,
        workspace: Workspace,
        handle: Any,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        pages: PageIndex,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        *,
        causal: bool,
        dependent: bool = False,
    ) -> None:
        """q [T, num_heads, head_dim] over caches [pages, page_size, num_kv_heads, head_dim] -> out, as q. `lse`
        fp32 [T, num_heads] gets the base-2 logarithm of each softmax sum. `dependent`: may start before the kernel
        ahead of it has ended (fa2 only)."""
        common = (
            workspace.partial,
            workspace.plan,
            handle,
            q,
            k_cache,
            v_cache,
            pages.query_indptr,
            pages.indptr,
            pages.indices,
            pages.last_page_lens,
            out,
            lse,
            _CAUSAL if causal else _NON_CAUSAL,
            _NHD,
            -1,
            dependent,
        )
        no_mask = (None, None, None)
        no_items = (None, None, None)
        if self.backend == "fa2":
            # soft cap, scale, reciprocal rope scale and theta (unused), item length (unused)
            self._module.paged_run(*common, *no_mask, *no_items, 0.0, self._scale, 1.0, 1e-4, 0)
        else:
            # no per-head V scale, soft cap, scale, V scale, item length (unused)
            self._module.paged_run(*common, *no_items, None, 0.0, self._scale, 1.0, 0)


def _load(backend: Backend, dtype: torch.dtype, head_dim: int) -> Any:
    """Build (once per machine, minutes) or load the kernels. Raises UserError if that is not possible."""
    try:
        import flashinfer
        from flashinfer.jit.attention import gen_batch_prefill_module
    except ImportError as error:
        raise UserError(
            f"A GPU needs the package flashinfer-python {_KNOWN_VERSION} ({error}); install it or use --device cpu."
        ) from None
    if not str(flashinfer.__version__).startswith(_KNOWN_VERSION):
        raise UserError(
            f"flashinfer {flashinfer.__version__} is installed, but {_KNOWN_VERSION} is needed; install "
            f"'flashinfer-python=={_KNOWN_VERSION}.*'."
        )
    if head_dim not in HEAD_DIMS:
        raise UserError(
            f"The model's heads have {head_dim} dimensions; a GPU serves 64, 128 and 256; use --model-impl "
            "transformers, which pads narrower heads, or --device cpu."
        )
    spec = gen_batch_prefill_module(
        backend, dtype, dtype, dtype, torch.int32, head_dim, head_dim, 0, False, False, False
    )
    try:
        return spec.build_and_load()
    except (RuntimeError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"flashinfer could not build its kernels ({first}); nvcc and ninja must be on this machine."
        ) from None
