"""Translates a GGUF file's metadata and tensor names into those of a checkpoint directory (llama.cpp's conventions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import UserError

# general.architecture -> the architecture's name in config.json. llama.cpp files Mistral models as llama.
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's scaling as one factor per frequency; belongs into the config
_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}  # llama.cpp's numbers, sentence-transformers' names
_LLAMA3_FACTORS = (8.0, 32.0)  # Llama 3.1 and 3.2


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What a GGUF file says about the model."""

    metadata: dict[str, Any]
    tensor_names: frozenset[str]
    vocab_size: int
    rope_factors: npt.NDArray[np.float32] | None

    @property
    def architecture(self) -> str:
        name = str(self.metadata.get("general.architecture"))
        if name not in _ARCHITECTURES:
            known = ", ".join(sorted(_ARCHITECTURES))
            raise UserError(f"GGUF files of the architecture {name} are not supported; supported are {known}.")
        return name

    def value(self, key: str, default: Any = None) -> Any:
        """A key of the architecture's section. Raises UserError if it is absent and has no default."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise UserError(f"The GGUF file lacks {self.architecture}.{key}.")
        return value


def config_json(model: GgufModel, dtype: str) -> dict[str, Any]:
    """The file's config.json."""
    heads, hidden = int(model.value("attention.head_count")), int(model.value("embedding_length"))
    head_dim = int(model.value("attention.key_length", model.value("rope.dimension_count", hidden // heads)))
    return {
        "architectures": [_ARCHITECTURES[model.architecture]],
        "model_type": _MODEL_TYPES[model.architecture],
        "vocab_size": model.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": int(model.value("feed_forward_length")),
        "num_hidden_layers": int(model.value("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(model.value("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _short(model.value("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope_parameters(model, head_dim),
        "max_position_embeddings": int(model.value("context_length")),
        "tie_word_embeddings": "output.weight" not in model.tensor_names,
        "attention_bias": "blk.0.attn_q.bias" in model.tensor_names,
        "dtype": dtype,
        **special_ids(model),
    }


def pooling_json(model: GgufModel) -> dict[str, Any] | None:
    """The pooling of an embedding model as sentence-transformers has it; None: it generates text."""
    kind = int(model.value("pooling_type", 0))
    return {"pooling_mode": _POOLINGS.get(kind, str(kind))} if kind else None


def special_ids(model: GgufModel) -> dict[str, Any]:
    """bos, eos and pad ids; eos is a list if the file also names an end-of-turn token."""
    token = {name: model.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "padding")}
    eos = list(dict.fromkeys(int(t) for t in (token["eos"], token["eot"]) if t is not None))
    ids = {"bos_token_id": token["bos"], "eos_token_id": eos[0] if len(eos) == 1 else eos or None}
    return {key: value for key, value in {**ids, "pad_token_id": token["padding"]}.items() if value is not None}


def checkpoint_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight. Raises UserError for an unknown tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _IN_BLOCK:
        return f"model.layers.{parts[1]}.{_IN_BLOCK[parts[2]]}.{kind}"
    raise UserError(f"The GGUF file holds the tensor {name}, which none of the supported models has.")


def heads_to_unpermute(model: GgufModel, name: str) -> int:
    """llama.cpp stores q and k of Llama models with each head's rotary pairs interleaved: how many heads to undo it
    for, 0 if the tensor is as it should be."""
    if model.architecture != "llama":
        return 0
    heads = int(model.value("attention.head_count"))
    if ".attn_q." in name:
        return heads
    return int(model.value("attention.head_count_kv", heads)) if ".attn_k." in name else 0


def unpermute(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Interleaved rotary pairs -> halves, within each head's rows."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _rope_parameters(model: GgufModel, head_dim: int) -> dict[str, Any]:
    theta = float(model.value("rope.freq_base", 10000.0))
    parameters: dict[str, Any] = {"rope_theta": theta, "rope_type": "default"}
    kind = model.value("rope.scaling.type", "none")
    if kind == "linear":
        parameters |= {"rope_type": "linear", "factor": float(model.value("rope.scaling.factor"))}
    elif kind != "none":
        raise UserError(f"The GGUF file's rope scaling {kind} is not supported; supported are none and linear.")
    if model.rope_factors is not None:
        parameters |= _llama3_parameters(model.rope_factors, theta, head_dim)
    return parameters


def _llama3_parameters(factors: npt.NDArray[np.float32], theta: float, head_dim: int) -> dict[str, Any]:
    """The published parameters that give these factors per frequency."""
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = 8192 * frequencies / (2 * np.pi)
    blend = np.clip((turns - 1) / 3, 0, 1)
    for factor in _LLAMA3_FACTORS:
        if len(factors) == len(blend) and np.allclose(factors, 1 / (blend + (1 - blend) / factor), rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
    raise UserError("The GGUF file scales its rotary frequencies in an unknown way, which is not supported.")


def _short(value: Any) -> float:
    """A float32 as the shortest decimal that means it: 9.999999747e-06 -> 1e-05."""
    return float(str(np.float32(value)))
