"""Which architectures (the names in config.json) are served, and in what the families differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Traits that an architecture's name implies. All families share the model code in worker/models/llama.py."""

    qkv_bias: bool | None = None  # None: `attention_bias` of config.json says
    o_bias_follows: bool = True  # the output projection has a bias when q, k and v do
    qk_norm: bool = False
    windowed: bool = False  # `sliding_window` counts unless `use_sliding_window` is false


ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(qkv_bias=False, windowed=True),
    "Qwen2ForCausalLM": Family(qkv_bias=True, o_bias_follows=False),
    "Qwen3ForCausalLM": Family(qk_norm=True),
}
