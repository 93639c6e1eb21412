"""Whether a checkpoint makes embeddings, and how: what sentence-transformers wrote beside its config.json.

Such a model is a decoder of which nobody wants tokens: its final hidden states become one vector for each text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

from common.errors import UserError

_MODULES = "modules.json"
_POOLING = "1_Pooling"
POOLING_FILE = f"{_POOLING}/config.json"
_LIMITS = "sentence_bert_config.json"
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
_MODE = "pooling_mode"  # newer files name it, older ones have a flag for each
# Model types whose tokens see what stands behind them.
_ENCODERS = frozenset(
    {
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "eurobert", "jina_bert"),
        *("modernbert", "mpnet", "new", "nomic_bert", "roberta", "t5", "xlm", "xlm-roberta"),
    }
)


class Pooling(Enum):
    """How hidden states of a text become one vector: the last token's, or the mean over all."""

    LAST = "last"
    MEAN = "mean"


_POOLINGS = {"lasttoken": Pooling.LAST, "mean": Pooling.MEAN, "mean_tokens": Pooling.MEAN}


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """What the checkpoint says. `max_tokens`: of a text, if fewer than the decoder could read."""

    pooling: Pooling
    max_tokens: int | None = None


def read_embedding_config(path: Path, raw: Mapping[str, Any], *, asked: bool) -> EmbeddingConfig | None:
    """How the checkpoint in directory `path`, whose config.json is `raw`, makes embeddings; None: it generates text.
    Without files of sentence-transformers it makes them only if `asked`, from the last token.

    Raises UserError for what is not supported, in one sentence.
    """
    modules = _read(path / _MODULES)
    pooling_file = path / _pooling_directory(modules) / "config.json"
    if not asked and modules is None and not pooling_file.is_file():
        return None
    _check_decoder(raw)
    rules = _read(pooling_file)
    pooling = Pooling.LAST if rules is None else _pooling(rules, pooling_file)
    return EmbeddingConfig(pooling, _max_tokens(path))


def decoder_config(raw: Mapping[str, Any], embedding: EmbeddingConfig) -> dict[str, Any]:
    """`raw` as of the generating model that has the same layers. The output projection, which most such checkpoints
    lack, is never used, so the input embedding may stand for it."""
    architecture = str(raw["architectures"][0])
    if architecture.endswith("Model"):
        architecture = f"{architecture.removesuffix('Model')}ForCausalLM"
    changed = {"architectures": [architecture], "tie_word_embeddings": True}
    most = raw.get("max_position_embeddings")
    if embedding.max_tokens is not None and most is not None:
        changed["max_position_embeddings"] = min(int(most), embedding.max_tokens)
    return {**raw, **changed}


def _check_decoder(raw: Mapping[str, Any]) -> None:
    architecture = raw["architectures"][0]
    if raw.get("model_type") in _ENCODERS:
        raise UserError(
            f"{architecture} is an encoder, whose tokens see those behind them, which is not supported; use an "
            "embedding model that is a decoder, such as Qwen3-Embedding."
        )
    for key, causal in (("is_causal", True), ("use_bidirectional_attention", False)):
        if raw.get(key) is not None and raw[key] is not causal:
            raise UserError(
                f"{architecture} with {key} in its config.json lets tokens see those behind them, which is not "
                "supported; use an embedding model whose attention is causal."
            )


def _pooling_directory(modules: Any) -> str:
    """Where the pooling's config.json is. Raises UserError if there is a step that is not known."""
    directory = _POOLING
    if modules is None:
        return directory
    try:
        steps = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in modules]
    except (TypeError, KeyError):
        raise UserError(f"{_MODULES} of the checkpoint is not what sentence-transformers writes.") from None
    for kind, where in steps:
        if kind not in _KNOWN_MODULES:
            raise UserError(
                f"The checkpoint's {_MODULES} asks for the step {kind}, which is not supported; supported are "
                f"{', '.join(_KNOWN_MODULES)}."
            )
        if kind == "Pooling":
            directory = where
    return directory


def _pooling(rules: Any, file: Path) -> Pooling:
    if not isinstance(rules, dict):
        raise UserError(f"{file} must hold a JSON object.")
    asked = [str(rules[_MODE])] if _MODE in rules else []
    asked += [key.removeprefix(f"{_MODE}_") for key, on in rules.items() if key.startswith(f"{_MODE}_") and on is True]
    pooling = _POOLINGS.get(asked[0]) if len(asked) == 1 else None
    if pooling is None:
        raise UserError(
            f"{file} asks for the pooling {' and '.join(asked) or 'none'}, which is not supported; supported are "
            "lasttoken and mean_tokens, alone."
        )
    if pooling is Pooling.MEAN and rules.get("include_prompt") is False:
        raise UserError(f"{file} leaves prompts out of the mean (include_prompt), which is not supported.")
    return pooling


def _max_tokens(path: Path) -> int | None:
    limits = _read(path / _LIMITS)
    most = limits.get("max_seq_length") if isinstance(limits, dict) else None
    return most if isinstance(most, int) and most > 0 else None


def _read(path: Path) -> Any:
    """A JSON file, None if there is none. Raises UserError if it cannot be read."""
    try:
        return orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except orjson.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
