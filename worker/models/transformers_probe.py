"""Finds out how Transformers' code of a model uses attention: one pass without memory or arithmetic, on torch's meta
device. What the paged attention of this engine cannot compute is refused, before any weight is read."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from common.errors import UserError
from worker.models.transformers_attention import IMPLEMENTATION, attach
from worker.models.transformers_rope import freeze_frequencies

_NUM_TOKENS = 4
# Attention inputs that change nothing, or that the engine takes care of.
_KNOWN_TENSORS = ("position_ids", "cache_position", "position_embeddings")
_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention")
_FURTHER_INPUTS = {"s_aux": "attention sinks", "position_bias": "a position bias"}
_OWN_ATTENTION = "its code in Transformers computes attention by itself, without the table of attention functions"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model's code is laid out. `attention` names its attention modules by layer; `body` is the module that turns
    token ids into hidden states. `window`: tokens that the narrowest layer sees, None = all."""

    attention: tuple[str, ...]
    body: str
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries, keys or values, whichever is widest
    window: int | None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the attention function. Shapes are [1, heads, T, dim]."""

    module: str
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    options: dict[str, Any]
    causal: bool


def probe(hf_config: Any, architecture: str, *, trust_remote_code: bool) -> Layout:
    """Run the model of `hf_config` on the meta device. Raises UserError if it cannot be served."""
    reason = _config_obstacle(hf_config)
    if reason is not None:
        raise _refusal(architecture, reason)
    try:
        model, calls, called = _trace(hf_config, trust_remote_code)
    except Exception as error:
        raise _refusal(architecture, _broken(error)) from None
    reason = _obstacle(model, architecture) or _attention_obstacle(hf_config, calls)
    if reason is not None:
        raise _refusal(architecture, reason)
    first = calls[0]
    return Layout(
        attention=tuple(call.module for call in calls),
        body=called[1],
        num_heads=first.query[1],
        num_kv_heads=first.key[1],
        head_dim=max(first.query[3], first.value[3]),
        window=_window(hf_config, calls),
    )


def _refusal(architecture: str, reason: str) -> UserError:
    return UserError(f"The model's architecture {architecture} is not supported: {reason}.")


def _trace(hf_config: Any, trust_remote_code: bool) -> tuple[Any, list[_Call], list[str]]:
    """The model, its calls of attention, and the names of its modules in the order in which they were called."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(hf_config),
            attn_implementation=IMPLEMENTATION,
            dtype=torch.bfloat16,
            trust_remote_code=trust_remote_code,
        ).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")  # the one without shapes that depend on data
    freeze_frequencies(model)
    calls: list[_Call] = []
    called: list[str] = []
    for name, module in model.named_modules():
        attach(module, _recorder(name, module, calls))
        module.register_forward_pre_hook(lambda *_, name=name: called.append(name))
    ids = torch.zeros((1, _NUM_TOKENS), dtype=torch.int64, device="meta")
    with torch.inference_mode():
        model(input_ids=ids, position_ids=ids, use_cache=False)
    return model, calls, called


def _recorder(name: str, module: torch.nn.Module, calls: list[_Call]) -> Any:
    causal = bool(getattr(module, "is_causal", True))

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        given = {key: value for key, value in options.items() if value is not None}
        calls.append(_Call(name, tuple(q.shape), tuple(k.shape), tuple(v.shape), given, causal))
        return q.new_empty((1, q.shape[2], q.shape[1], v.shape[3]))

    return record


def _broken(error: Exception) -> str:
    """Why tracing failed. Models with their own attention fail when they look their choice of it up."""
    if isinstance(error, KeyError) and IMPLEMENTATION in str(error):
        return _OWN_ATTENTION
    first = (str(error).strip().splitlines() or [""])[0]
    if first.startswith("Unrecognized configuration class"):
        return "Transformers has no code for text generation with it"
    return f"Transformers' code for it cannot be traced ({type(error).__name__}: {first[:200]})"


def _config_obstacle(hf_config: Any) -> str | None:
    """What the configuration alone rules out."""
    kinds = set(getattr(hf_config.get_text_config(), "layer_types", None) or ()) - set(_LAYER_KINDS)
    if kinds:
        return (
            f"it is not a pure attention decoder, some of its layers are of another kind ({', '.join(sorted(kinds))})"
        )
    attention = getattr(hf_config, "attn_config", None)
    if any(getattr(part, "alibi", False) for part in (hf_config, attention)) or hf_config.model_type == "bloom":
        return "it adds a position bias (ALiBi) to its attention scores"
    return None


def _obstacle(model: Any, architecture: str) -> str | None:
    """What stands against the model as a whole."""
    if type(model).__name__ != architecture:
        return f"Transformers' code for text generation with this checkpoint is {type(model).__name__}"
    if getattr(model, "_is_stateful", False):
        return "it is not a pure attention decoder, some of its layers keep a state of another kind"
    if not isinstance(model.get_output_embeddings(), torch.nn.Linear):
        return "its output projection is not a plain linear layer"
    return None


def _attention_obstacle(hf_config: Any, calls: list[_Call]) -> str | None:
    """What stands against computing its attention over a paged pool."""
    num_layers = getattr(hf_config.get_text_config(), "num_hidden_layers", len(calls))
    if not calls:
        return _OWN_ATTENTION
    if len({call.module for call in calls}) != len(calls):
        return "its code calls the same attention layer several times in a pass"
    if len(calls) != num_layers:
        return f"only {len(calls)} of its {num_layers} layers are plain attention"
    if len({(call.query[1], call.key[1], call.value[1], call.query[3], call.value[3]) for call in calls}) > 1:
        return "its layers differ in their numbers of heads or in the heads' dimensions"
    first = calls[0]
    if first.key[1] != first.value[1] or first.query[3] != first.key[3]:
        return "its keys and values differ in their numbers of heads"
    return next((reason for call in calls if (reason := _option_obstacle(call)) is not None), None)


def _option_obstacle(call: _Call) -> str | None:
    """What an attention layer asks for that no backend of the engine computes."""
    if not call.causal or call.options.get("is_causal") is False:
        return "its attention looks ahead (it is not causal)"
    if "attention_mask" in call.options:
        return "its code makes an attention mask of its own"
    if "softcap" in call.options:
        return "its attention scores are capped (attention logit soft-capping)"
    others = (name for name, value in call.options.items() if isinstance(value, torch.Tensor))
    unknown = next((name for name in others if name not in _KNOWN_TENSORS), None)
    return None if unknown is None else f"its attention takes a further input, {_FURTHER_INPUTS.get(unknown, unknown)}"


def _window(hf_config: Any, calls: list[_Call]) -> int | None:
    """The shortest distance that a layer's attention is limited to."""
    text = hf_config.get_text_config()
    windows = [int(call.options["sliding_window"]) for call in calls if "sliding_window" in call.options]
    kinds = getattr(text, "layer_types", None) or ()
    if "chunked_attention" in kinds:
        windows.append(int(text.attention_chunk_size))
    if "sliding_attention" in kinds and not windows:
        windows.append(int(text.sliding_window))
    return min(windows, default=None)
