"""Puts the engine's attention in the place of Transformers' own: registered in its table of attention functions, under
a name that its mask functions do not know, so that no mask is made."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from worker.attention.base import LayerAttention

IMPLEMENTATION = "canopy_paged"
# The attribute of an attention module that computes in its place; see `attach`.
_ATTRIBUTE = "canopy_attention"
_SAME_SCALE = 1e-6


class CurrentPass:
    """The attention of the pass being computed, shared by the layers of one model."""

    def __init__(self) -> None:
        self.attention: LayerAttention | None = None


class PagedLayer:
    """Attention of one layer over the paged pool, whose heads may be wider than the model's.

    Backends scale scores by 1 / sqrt(width of the pool's heads); queries are scaled here for models that want another
    factor.
    """

    def __init__(self, layer: int, head_dim: int, current: CurrentPass) -> None:
        self._layer = layer
        self._head_dim = head_dim
        self._current = current

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        """query [1, heads, T, dim], key and value [1, kv_heads, T, dim] -> [1, T, heads, dim of value]."""
        attention = self._current.attention
        assert attention is not None
        scaling = options.get("scaling")
        factor = math.sqrt(self._head_dim) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        q, k, v = self._packed(query), self._packed(key), self._packed(value)
        if abs(factor - 1.0) > _SAME_SCALE:
            q = q * factor
        out = attention.forward(self._layer, q, k, v).view(q.shape)
        return out[..., : value.shape[-1]].unsqueeze(0)

    def _packed(self, x: torch.Tensor) -> torch.Tensor:
        """[1, heads, T, dim] -> [T, heads, width of the pool's heads], each token in one piece."""
        tokens = x[0].transpose(0, 1)
        missing = self._head_dim - x.shape[-1]
        return (F.pad(tokens, (0, missing)) if missing else tokens).contiguous()


def attach(module: torch.nn.Module, compute: Any) -> None:
    """Have `compute(query, key, value, options)` give what the attention function of `module` returns."""
    setattr(module, _ATTRIBUTE, compute)


def _attention_function(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    if mask:
        options["attention_mask"] = mask[0]
    return getattr(module, _ATTRIBUTE)(query, key, value, options), None


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _attention_function)
