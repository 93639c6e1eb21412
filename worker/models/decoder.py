"""What a runner asks of a model, whichever code computes it."""

from __future__ import annotations

from typing import Protocol

import torch

from worker.attention.base import LayerAttention


class Decoder(Protocol):
    """A language model over packed tokens: no batch dimension, keys and values are attention's business."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: LayerAttention) -> torch.Tensor:
        """input_ids and positions, integers [T] -> final hidden states [T, hidden_size]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, hidden_size] -> logits [N, vocab_size], in the model's dtype or fp32."""
        ...
