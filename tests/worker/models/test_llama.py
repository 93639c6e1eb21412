"""The model's logits against Transformers' own modelling code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.helpers.tiny_models import TINY_CONFIGS, VOCAB_SIZE, TinyModel
from tests.helpers.whole_prompt import whole_prompt_attention
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
    attention = whole_prompt_attention(config, len(ids))

    with torch.inference_mode():
        model = LlamaModel(config, SafetensorsWeights(tiny.path, dtype=torch.float32, device=CPU), TorchOps())
        hidden = model.forward(torch.from_numpy(ids), torch.arange(len(ids)), attention)
        logits = model.logits(hidden)

    expected = tiny.logits(ids.tolist())
    assert (logits - expected).abs().max() / expected.abs().max() < 1e-4
