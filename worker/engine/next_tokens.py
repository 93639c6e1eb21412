"""The token each row feeds its next decode: sampled by one pass, read by the next, without a trip to the host."""

from __future__ import annotations

import torch


class NextTokens:
    """int64 [max_rows] on the runner's device."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._tokens = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """The inputs of decodes for these rows, int64 [len(rows)]."""
        return self._tokens.index_select(0, rows)

    def write(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Remember what was sampled for these rows (each at most once)."""
        self._tokens.index_copy_(0, rows, token_ids)
