"""The table of cosines and sines for rotary embeddings, with the frequency scalings that checkpoints ask for."""

from __future__ import annotations

import math

import torch

from worker.layers.rope_config import RopeConfig


def cos_sin_table(rope: RopeConfig, head_dim: int, context_len: int) -> torch.Tensor:
    """fp32 [context_len, head_dim]: cosines of each position in the first half, sines in the second."""
    angles = torch.outer(torch.arange(context_len, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """fp32 [head_dim / 2], radians per token."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1's rule: long wavelengths are slowed by `factor`, short ones kept, those between blended linearly in
    the number of turns they make over the original context."""
    turns = rope.original_context_len * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * plain / rope.factor + blend * plain
