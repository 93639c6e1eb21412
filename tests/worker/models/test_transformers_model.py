"""The cut model: logits by the model's own code, and the check that tokens of a pass do not know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaMLP, GemmaRotaryEmbedding

from common.errors import UserError
from tests.helpers.other_models import OTHER_CONFIGS
from tests.helpers.tiny_models import VOCAB_SIZE, TinyModel
from tests.helpers.whole_prompt import whole_prompt_attention
from worker.layers.torch_ops import TorchOps
from worker.models.config import load_model_config
from worker.models.transformers_config import TransformersConfig
from worker.models.transformers_model import TransformersModel, load_transformers_model

CPU = torch.device("cpu")
HEAD_DIMS = (32, 64)  # wider than the tiny models' heads, as on a GPU


def load(tiny: TinyModel) -> tuple[TransformersConfig, TransformersModel]:
    config = load_model_config(tiny.path)
    assert isinstance(config, TransformersConfig)
    config = config.padded_to(HEAD_DIMS)
    with torch.inference_mode():
        loaded = load_transformers_model(config, tiny.path, TorchOps(), dtype=torch.float32, device=CPU)
    assert loaded.weight_bytes == sum(p.nbytes for p in tiny.reference.parameters())
    return config, loaded.model


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_logits_match_with_padded_heads(name: str, other_model: Callable[[str], TinyModel]) -> None:
    tiny = other_model(name)
    config, model = load(tiny)
    assert config.head_dim in HEAD_DIMS
    ids = np.random.default_rng(3).integers(3, VOCAB_SIZE, 60)
    attention = whole_prompt_attention(config, len(ids))
    with torch.inference_mode():
        hidden = model.forward(torch.from_numpy(ids).int(), torch.arange(len(ids), dtype=torch.int32), attention)
        some = [59, 3, 17]
        logits = model.logits(hidden[some])
    expected = tiny.logits(ids.tolist())[some]
    assert (logits - expected).abs().max() / expected.abs().max() < 1e-4


def mix(self: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x.roll(1, dims=1)))
    return out


def count(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(position_ids.shape[1], device=x.device)[None, :, None] * torch.cat(
        (self.inv_freq, self.inv_freq)
    )
    return angles.cos(), angles.sin()


@pytest.mark.parametrize(("part", "fault"), [(GemmaMLP, mix), (GemmaRotaryEmbedding, count)])
def test_code_that_mixes_tokens_or_counts_them_is_refused(
    part: type, fault: Callable[..., Any], other_model: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = other_model("gemma")
    monkeypatch.setattr(part, "forward", fault)
    with pytest.raises(UserError, match="GemmaForCausalLM is not supported: its code in Transformers mixes tokens"):
        load(tiny)
