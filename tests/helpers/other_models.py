"""Tiny configurations of architectures that run by Transformers' own code, each for what sets it apart."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING

from tests.helpers.tiny_models import SIZES

_NO_HEAD_DIM = {key: value for key, value in SIZES.items() if key != "head_dim"}
_GPT = {key: SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")} | {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [4.0, 5.0, 6.0, 7.0],
}


def _config(model_type: str, **values: Any) -> Any:
    return CONFIG_MAPPING[model_type](**values)


OTHER_CONFIGS: dict[str, Any] = {
    "gemma": _config("gemma", **SIZES),  # scaled embeddings, norms of 1 + weight
    "phi3": _config("phi3", **_NO_HEAD_DIM, pad_token_id=0),  # q, k and v in one matrix
    "phi3-longrope": _config(
        "phi3", **_NO_HEAD_DIM, pad_token_id=0, original_max_position_embeddings=128, rope_parameters=_LONGROPE
    ),
    "gpt_neox": _config("gpt_neox", **_NO_HEAD_DIM),  # partial rotation, attention beside the MLP
    "olmo2": _config("olmo2", **_NO_HEAD_DIM),  # norms after the blocks, and over all heads of queries and keys
    "granite": _config(  # scores and logits of another scale
        "granite", **_NO_HEAD_DIM, attention_multiplier=0.3, logits_scaling=3.0, residual_multiplier=0.7
    ),
    "mixtral": _config("mixtral", **SIZES, num_local_experts=4),
    "qwen2_moe": _config("qwen2_moe", **_NO_HEAD_DIM, **_EXPERTS, shared_expert_intermediate_size=32),
    "qwen3_moe": _config("qwen3_moe", **SIZES, **_EXPERTS),
    "olmoe": _config("olmoe", **_NO_HEAD_DIM, num_experts=8, num_experts_per_tok=2),
    "gpt2": _config("gpt2", **_GPT),  # learned positions
    "gpt_bigcode": _config("gpt_bigcode", **_GPT),  # one KV head
    "opt": _config(  # learned positions with an offset, queries scaled by the model
        "opt", **_NO_HEAD_DIM, ffn_dim=96, word_embed_proj_dim=64
    ),
    "phi": _config("phi", **_NO_HEAD_DIM),  # a bias behind the output projection
    "starcoder2": _config("starcoder2", **_NO_HEAD_DIM),
    "cohere": _config("cohere", **_NO_HEAD_DIM),  # interleaved rotation, scaled logits
    "gemma3": _config("gemma3_text", **SIZES, sliding_window=128, final_logit_softcapping=2.0),
    "deepseek_v3": _config(  # keys and values of different width
        "deepseek_v3",
        **_NO_HEAD_DIM | {"num_key_value_heads": 8},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
}
