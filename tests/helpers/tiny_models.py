"""Tiny random checkpoints, made by Transformers, which is the reference too: here of the families with code of their
own, in other_models.py of others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

VOCAB_SIZE = 131
SEED = 7

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

TINY_CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-bias": LlamaConfig(**SIZES, attention_bias=True),
    "llama-bias-llama3": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3_ROPE),
    "llama-linear": LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A checkpoint directory and Transformers' model of it (fp32, evaluation mode)."""

    path: Path
    reference: Any

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """fp32 [len(ids), vocab]."""
        with torch.inference_mode():
            out: torch.Tensor = self.reference(torch.tensor([list(ids)])).logits[0]
        return out

    def greedy(self, prompt: Sequence[int], num_outputs: int) -> list[int]:
        """The reference's answer; no choice of it may hang on rounding."""
        ids = list(prompt)
        for _ in range(num_outputs):
            best = self.logits(ids)[-1].topk(2)
            assert best.values[0] - best.values[1] > 1e-4, "the prompt leads to a tie; choose another seed"
            ids.append(int(best.indices[0]))
        return ids[len(prompt) :]


def build_tiny(name: str, folder: Path, *, vocab_size: int = VOCAB_SIZE, seed: int = SEED) -> TinyModel:
    """Write the checkpoint of TINY_CONFIGS[name] to `folder`. The same name and seed give the same weights."""
    config = copy.deepcopy(TINY_CONFIGS[name])
    config.vocab_size = vocab_size
    return save_tiny(config, folder, seed=seed)


def save_tiny(config: Any, folder: Path, *, seed: int = SEED) -> TinyModel:
    """Write a checkpoint of this configuration to `folder`. The same one and the same seed give the same weights."""
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # norms near 1 and biases away from 0, so that one left out or swapped shows
            parameter.copy_(1 + 0.3 * noise if "norm" in parameter_name else 0.15 * noise)
    model.save_pretrained(folder)
    return TinyModel(folder, model)
