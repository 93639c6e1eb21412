"""Which architectures (the names in config.json) have code of our own, and in what the families differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Traits that an architecture's name implies. All families share the model code in worker/models/llama.py."""

    qkv_bias: bool | None = None  # None: `attention_bias` of config.json says
    o_bias_follows: bool = True  # the output projection has a bias when q, k and v do
    qk_norm: bool = False
    window_tokens: int | None = None  # sliding window where config.json names none; None: only if it asks for one


ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(qkv_bias=False, window_tokens=4096),
    "Qwen2ForCausalLM": Family(qkv_bias=True, o_bias_follows=False),
    "Qwen3ForCausalLM": Family(qk_norm=True),
}
