"""What attention gets for a pass, and the protocol of its implementations. Knows pools and pages, never requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PassMetadata:
    """Where the tokens of a pass stand: R sequences, decodes first, T new tokens in all.

    Sequence i has its keys and values in pages `page_table[rows[i], :]`; the new ones of all sequences, packed, are
    written to `write_slots` before attention reads them. A slot is page * page_size + offset in the page.
    """

    rows: Int32s  # [R]
    query_lens: Int32s  # [R]
    seq_lens: Int32s  # [R], cached tokens after the pass
    num_decode: int
    write_slots: Int64s  # [T]
    page_table: Int32s  # [max_rows, max_pages_per_row], shared with its owner: read-only
    page_size: int


class LayerAttention(Protocol):
    """Causal attention over a paged pool, prepared for one pass."""

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]; k, v go to the pool."""
        ...


class AttentionBackend(LayerAttention, Protocol):
    """`plan` once per pass, then `forward` once per layer."""

    def plan(self, metadata: PassMetadata) -> None:
        """Prepare for the pass."""
        ...
