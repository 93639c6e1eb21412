"""The model's logits against Transformers' own modelling code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.helpers.tiny_models import TINY_CONFIGS, VOCAB_SIZE, TinyModel
from worker.attention.base import PassMetadata
from worker.attention.kv_pool import KVPool
from worker.attention.torch_native import TorchNativeAttention
from worker.layers.torch_ops import TorchOps
from worker.models.config import load_model_config
from worker.models.llama import LlamaModel
from worker.models.weights import SafetensorsWeights

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_logits_of_a_whole_prompt_match(name: str, tiny_model: Callable[[str], TinyModel]) -> None:
    tiny = tiny_model(name)
    config = load_model_config(tiny.path)
    ids = np.random.default_rng(3).integers(0, VOCAB_SIZE, 100)
    pool = KVPool(
        num_layers=config.num_layers,
        num_pages=len(ids),
        page_size=1,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    attention = TorchNativeAttention(pool, num_heads=config.num_heads)
    slots = np.arange(1, len(ids) + 1)
    length = np.array([len(ids)], dtype=np.int32)
    attention.plan(PassMetadata(np.array([0], np.int32), length, length, 0, slots, slots[None].astype(np.int32), 1))

    with torch.inference_mode():
        model = LlamaModel(config, SafetensorsWeights(tiny.path, dtype=torch.float32, device=CPU), TorchOps())
        hidden = model.forward(torch.from_numpy(ids), torch.arange(len(ids)), attention)
        logits = model.logits(hidden)

    expected = tiny.logits(ids.tolist())
    assert (logits - expected).abs().max() / expected.abs().max() < 1e-4
