"""Configuration of a model that Transformers' own code computes. Torch and Transformers are imported by need only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from worker.models.config import ModelConfig, checkpoint_dtype, eos_token_ids, shorten_context
from worker.models.transformers_rope import rope_limit

log = logging.getLogger(__name__)

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig(ModelConfig):
    """What worker/models/transformers_model.py needs besides."""

    hf: Any  # Transformers' configuration object
    hidden_size: int
    attention_modules: tuple[str, ...]  # their names, by layer
    body: str  # name of the module that turns token ids into hidden states
    trust_remote_code: bool

    def padded_to(self, head_dims: Sequence[int]) -> TransformersConfig:
        """With heads as wide as the smallest of `head_dims` that holds the model's; as it is if none does."""
        return replace(self, head_dim=min((d for d in head_dims if d >= self.head_dim), default=self.head_dim))


def read_config(
    path: Path, raw: Mapping[str, Any], *, context_length: int | None, trust_remote_code: bool
) -> TransformersConfig:
    """The configuration of the checkpoint in `path`, whose config.json is `raw`. Raises UserError, with architecture
    and reason, for what cannot be served."""
    architecture = str(raw["architectures"][0])
    hf = read_hf_config(path, raw, trust_remote_code=trust_remote_code)
    if getattr(hf, "is_encoder_decoder", False):
        raise UserError(
            f"The model's architecture {architecture} is not supported: it has an encoder; only decoders are."
        )

    from worker.models.transformers_probe import probe

    layout = probe(hf, architecture, trust_remote_code=trust_remote_code)
    text = hf.get_text_config()
    return TransformersConfig(
        architecture=architecture,
        vocab_size=int(text.vocab_size),
        num_layers=len(layout.attention),
        num_heads=layout.num_heads,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        context_len=_context_len(text, architecture, layout.window, context_length),
        eos_token_ids=eos_token_ids(path, raw, int(text.vocab_size)),
        dtype=checkpoint_dtype(raw),
        hf=hf,
        hidden_size=int(text.hidden_size),
        attention_modules=layout.attention,
        body=layout.body,
        trust_remote_code=trust_remote_code,
    )


def read_hf_config(path: Path, raw: Mapping[str, Any], *, trust_remote_code: bool) -> Any:
    """Transformers' configuration object of the checkpoint in `path`, whose config.json is `raw`. Raises UserError."""
    import transformers

    architecture = str(raw["architectures"][0])
    try:
        hf = transformers.AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        if "auto_map" in raw and not trust_remote_code:
            raise UserError(
                f"The model's architecture {architecture} is not supported without the code in its repository; read "
                "that code, and use --trust-remote-code to run it."
            ) from None
        first = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"The model's architecture {architecture} is not supported: Transformers {transformers.__version__} "
            f"cannot read its config.json ({first})."
        ) from None
    return hf


def _context_len(text: Any, architecture: str, window: int | None, context_length: int | None) -> int:
    """Tokens. Within the narrowest window, and where rotary embeddings do not depend on a sequence's length, every
    layer attends to everything, which is what the engine computes."""
    made_for = next((int(v) for key in _CONTEXT_KEYS if (v := getattr(text, key, None))), context_length)
    if made_for is None:
        raise UserError(
            f"The config.json of {architecture} does not say how long its context is; use --context-length."
        )
    limits = {
        "its attention has a sliding window": window,
        "its rotary embedding changes beyond that": rope_limit(text),
    }
    for reason, limit in limits.items():
        if limit is not None and limit < made_for:
            log.warning("%s is served up to %d of its %d tokens: %s.", architecture, limit, made_for, reason)
            made_for = limit
    return shorten_context(made_for, context_length)
