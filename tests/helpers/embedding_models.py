"""Tiny embedding checkpoints as sentence-transformers writes them, and what Transformers makes of texts with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, Qwen3Config

from tests.helpers.text_models import EOS_ID, byte_level_backend, save_tokenizer
from tests.helpers.tiny_models import SIZES

LAST, MEAN = "lasttoken", "mean_tokens"
_STEPS = ("Transformer", "Pooling", "Normalize")
_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


@dataclass(frozen=True, slots=True)
class TinyEmbedder:
    """A checkpoint directory, and Transformers' body of it (fp32, evaluation mode)."""

    path: Path
    body: Any
    pooling: str

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return int(self.body.config.hidden_size)

    def vector(self, ids: Sequence[int], dimensions: int | None = None) -> npt.NDArray[np.float32]:
        """The reference: hidden states behind the last norm, pooled, cut to `dimensions`, made 1 long."""
        with torch.inference_mode():
            hidden = self.body(torch.tensor([list(ids)])).last_hidden_state[0]
        pooled = (hidden[-1] if self.pooling == LAST else hidden.mean(0)).numpy()[:dimensions]
        unit: npt.NDArray[np.float32] = pooled / np.linalg.norm(pooled)
        return unit


def save_tiny_embedder(folder: Path, *, pooling: str = LAST, context_len: int = 256, seed: int = 7) -> TinyEmbedder:
    """A random Qwen3 body with the byte-level tokenizer: no output projection, names without `model.`, and pooling and
    steps in files of their own. The same seed gives the same weights."""
    changes = {"vocab_size": byte_level_backend().get_vocab_size(), "max_position_embeddings": context_len}
    config = Qwen3Config(**(SIZES | changes | {"eos_token_id": EOS_ID}), tie_word_embeddings=True)
    body = AutoModel.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)
    body.save_pretrained(folder)
    save_tokenizer(folder)
    write_steps(folder, pooling=pooling)
    return TinyEmbedder(folder, body, pooling)


def write_steps(folder: Path, *steps: str, pooling: str = LAST, **more: Any) -> None:
    """modules.json with these steps (default: all that are known), and 1_Pooling/config.json with `more` in it."""
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{step}" if i else "", "type": f"sentence_transformers.models.{step}"}
        for i, step in enumerate(steps or _STEPS)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {f"pooling_mode_{mode}": mode == pooling for mode in _MODES}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64} | flags | more))
