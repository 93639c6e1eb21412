"""Rotary embeddings of Transformers whose frequencies depend on how long a sequence is: the engine keeps to those for
short ones, since the tokens of a pass belong to sequences of all lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_BY_LENGTH = ("dynamic", "longrope")


def rope_limit(text_config: Any) -> int | None:
    """The length in tokens up to which the frequencies are the same for every sequence; None = the whole context."""
    limits = [
        int(rope["original_max_position_embeddings"])
        for rope in _ropes(getattr(text_config, "rope_parameters", None))
        if rope.get("rope_type") == "longrope"
    ]
    return min(limits, default=None)


def freeze_frequencies(model: Any) -> None:
    """Keep the frequencies that the model starts with. To look for the longest sequence of each pass would wait for the
    GPU, too."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and kinds in _BY_LENGTH:
            module.rope_type = "default"
        elif isinstance(kinds, dict):
            module.rope_type = {layer: "default" if kind in _BY_LENGTH else kind for layer, kind in kinds.items()}


def _ropes(parameters: Any) -> Iterator[Mapping[str, Any]]:
    """The rope parameters of a config: one set, or one for each kind of layer."""
    if not isinstance(parameters, Mapping):
        return
    yield parameters
    for nested in parameters.values():
        yield from _ropes(nested)
