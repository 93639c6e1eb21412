"""Attention for a model that is given one whole prompt, without scheduler and runner."""

from __future__ import annotations

import numpy as np
import torch

from worker.attention.base import PassMetadata
from worker.attention.kv_pool import KVPool
from worker.attention.torch_native import TorchNativeAttention
from worker.models.config import ModelConfig


def whole_prompt_attention(config: ModelConfig, num_tokens: int) -> TorchNativeAttention:
    """On the CPU in fp32, over an empty pool; planned for the positions 0 .. num_tokens - 1 of one sequence."""
    pool = KVPool(
        num_layers=config.num_layers,
        num_pages=num_tokens,
        page_size=1,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    attention = TorchNativeAttention(pool, num_heads=config.num_heads)
    slots = np.arange(1, num_tokens + 1)
    length = np.array([num_tokens], dtype=np.int32)
    attention.plan(PassMetadata(np.array([0], np.int32), length, length, 0, slots, slots[None].astype(np.int32), 1))
    return attention
