"""Reads a checkpoint's config.json and generation_config.json into one frozen ModelConfig. Imports neither torch nor
transformers at the top, so the frontend may use it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from common.errors import UserError
from worker.layers.rope_config import RopeConfig
from worker.models.embedding import Pooling, decoder_config, read_embedding_config
from worker.models.registry import ARCHITECTURES, Family

DTYPES = ("float32", "float16", "bfloat16")

ModelImpl = Literal["auto", "canopy", "transformers"]

_ELSEWHERE = " by canopy's own code; use --model-impl transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a runner needs to know of any model. Sizes in elements, `context_len` in tokens, `dtype` the checkpoint's
    own. Heads and `head_dim` are those of the KV pool. `pooling`: it makes embeddings; None: it generates text."""

    architecture: str
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    pooling: Pooling | None = None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """What worker/models/llama.py needs besides."""

    hidden_size: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool


def load_model_config(
    path: Path,
    *,
    context_length: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    model_impl: ModelImpl = "auto",
    trust_remote_code: bool = False,
    is_embedding: bool = False,
) -> ModelConfig:
    """The configuration of the checkpoint in directory `path`: a LlamaConfig for the families of the registry, else, or
    if `model_impl` asks for it, a TransformersConfig.

    `overrides` replaces keys of config.json; `context_length` shortens the model's own; `is_embedding`: it makes
    embeddings, whether or not its files say so. Raises UserError if a file is missing or broken, or asks for something
    that is not supported.
    """
    raw, pooling = read_raw_config(path, overrides, is_embedding=is_embedding)
    architecture = raw["architectures"][0]
    family = ARCHITECTURES.get(architecture)
    if uses_transformers(raw, model_impl):
        from worker.models.transformers_config import read_config  # torch and Transformers take seconds to import

        found = read_config(path, raw, context_length=context_length, trust_remote_code=trust_remote_code)
        return replace(found, pooling=pooling)
    if family is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UserError(
            f"--model-impl canopy knows the architectures {known}, not {architecture}; leave it out, and "
            "Transformers' code runs the model."
        )
    try:
        config = _build(raw, architecture, family, eos_token_ids(path, raw, int(raw["vocab_size"])))
    except KeyError as error:
        raise UserError(f"{path / 'config.json'} lacks the key {error}.") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{path / 'config.json'} holds a value of the wrong type: {error}.") from None
    return replace(_limit_context(config, raw, family, context_length), pooling=pooling)


def read_raw_config(
    path: Path, overrides: Mapping[str, Any] | None = None, *, is_embedding: bool = False
) -> tuple[dict[str, Any], Pooling | None]:
    """config.json of the checkpoint in directory `path`, with the keys of `overrides` replaced; one that makes
    embeddings as the decoder that it is, and how it pools. Raises UserError unless it names an architecture and whole
    weights."""
    raw = _read_json(path / "config.json", required=True) | dict(overrides or {})
    if not raw.get("architectures"):
        raise UserError(f"{path / 'config.json'} lacks the key 'architectures'.")
    if "quantization_config" in raw:
        raise UserError("The checkpoint is quantised, which is not supported; use an unquantised one or a GGUF file.")
    embedding = read_embedding_config(path, raw, asked=is_embedding)
    return (raw, None) if embedding is None else (decoder_config(raw, embedding), embedding.pooling)


def uses_transformers(raw: Mapping[str, Any], model_impl: ModelImpl) -> bool:
    """Whether Transformers' code runs this model: it was asked for, or the registry does not know the architecture."""
    return model_impl == "transformers" or (model_impl == "auto" and raw["architectures"][0] not in ARCHITECTURES)


def checkpoint_dtype(raw: Mapping[str, Any]) -> str:
    """The type that a config.json states for its weights, one of DTYPES."""
    dtype = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    return dtype if dtype in DTYPES else "float32"


def shorten_context(made_for: int, context_length: int | None) -> int:
    """The model's context or the shorter one that --context-length asks for."""
    if context_length is not None and context_length > made_for:
        raise UserError(
            f"--context-length {context_length} exceeds the {made_for} tokens the model was made for; ask for at most "
            "that many, or raise max_position_embeddings in its config.json if it can take more."
        )
    return made_for if context_length is None else context_length


def _build(raw: Mapping[str, Any], architecture: str, family: Family, eos: tuple[int, ...]) -> LlamaConfig:
    heads = int(raw["num_attention_heads"])
    hidden = int(raw["hidden_size"])
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UserError(f"The model's activation {raw['hidden_act']} is not supported; only silu is{_ELSEWHERE}.")
    bias = bool(raw.get("attention_bias", False)) if family.qkv_bias is None else family.qkv_bias
    return LlamaConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        o_bias=bias and family.o_bias_follows,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        context_len=int(raw["max_position_embeddings"]),
        eos_token_ids=eos,
        dtype=checkpoint_dtype(raw),
    )


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """Both spellings: `rope_parameters` (Transformers 5) and `rope_theta` + `rope_scaling` (before)."""
    parameters = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if float(parameters.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UserError(
            f"The model rotates only a part of each head (partial_rotary_factor), which is not supported{_ELSEWHERE}."
        )
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=float(parameters["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_context_len=int(parameters["original_max_position_embeddings"]),
        )
    raise UserError(
        f"The model's rope scaling {kind} is not supported; supported are default, linear and llama3{_ELSEWHERE}."
    )


def _limit_context(
    config: LlamaConfig, raw: Mapping[str, Any], family: Family, context_length: int | None
) -> LlamaConfig:
    config = replace(config, context_len=shorten_context(config.context_len, context_length))
    window = raw.get("sliding_window", family.window_tokens)
    used = raw.get("use_sliding_window", family.window_tokens is not None)
    if used and window is not None and window < config.context_len:
        raise UserError(
            f"The model attends within a window of {window} tokens, which is supported only up to that length; "
            f"use --context-length {window}."
        )
    return config


def eos_token_ids(path: Path, raw: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Union of the EOS ids that config.json, generation_config.json and the tokenizer name, in that order.

    Ids outside the vocabulary can never be sampled; checkpoints with a tokenizer of another model name such.
    """
    ids = _as_ids(raw.get("eos_token_id"))
    ids += _as_ids(_read_json(path / "generation_config.json").get("eos_token_id"))
    ids += _tokenizer_eos(path)
    return tuple(dict.fromkeys(i for i in ids if 0 <= i < vocab_size))


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list) else [int(value)]


def _tokenizer_eos(path: Path) -> list[int]:
    settings = _read_json(path / "tokenizer_config.json")
    token = settings.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if content is None:
        return []
    for token_id, added in settings.get("added_tokens_decoder", {}).items():
        if added.get("content") == content:
            return [int(token_id)]
    tokenizer = _read_json(path / "tokenizer.json")
    return [int(a["id"]) for a in tokenizer.get("added_tokens", []) if a["content"] == content]


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise UserError(f"There is no {path.name} in {path.parent}; is it a model directory?") from None
        return {}
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except orjson.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object.")
    return value
