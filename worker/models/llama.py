"""The Llama family (Llama, Mistral, Qwen2, Qwen3): one model over packed tokens, for every device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from worker.attention.base import LayerAttention
from worker.layers.ops import Linear, Ops, Rotation
from worker.layers.rotary import cos_sin_table
from worker.models.config import LlamaConfig
from worker.models.weights import WeightSource


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One decoder layer: query, key and value products stacked into one, gate and up likewise."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Decoder with grouped-query attention, rotary positions and a gated MLP. Tokens are packed: no batch dimension."""

    def __init__(self, config: LlamaConfig, weights: WeightSource, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        vocabulary = (config.vocab_size, config.hidden_size)
        self.embedding = weights.tensor("model.embed_tokens.weight", vocabulary)
        self.layers = [_load_layer(config, weights, ops, i) for i in range(config.num_layers)]
        self.final_norm = weights.tensor("model.norm.weight", (config.hidden_size,))
        head = self.embedding if config.tie_word_embeddings else weights.tensor("lm_head.weight", vocabulary)
        self.head = ops.head(head)
        table = cos_sin_table(config.rope, config.head_dim, config.context_len)
        self._cos_sin = table.to(self.embedding.device)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: LayerAttention) -> torch.Tensor:
        """input_ids and positions int64 [T] -> normed hidden states [T, hidden_size]."""
        ops, eps = self._ops, self.config.rms_norm_eps
        residual = F.embedding(input_ids, self.embedding)
        rotate = ops.rotation(self._cos_sin, positions)
        x = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            x = layer.o(self._attend(i, layer, x, rotate, attention))
            x = ops.fused_add_rms_norm(x, residual, layer.post_norm, eps)
            x = layer.down(ops.silu_and_mul(layer.gate_up(x)))
            last = i + 1 == len(self.layers)
            norm = self.final_norm if last else self.layers[i + 1].input_norm
            x = ops.fused_add_rms_norm(x, residual, norm, eps)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, hidden_size] -> logits [N, vocab_size], in the model's dtype or fp32."""
        return self.head(hidden)

    def _attend(
        self, index: int, layer: LlamaLayer, x: torch.Tensor, rotate: Rotation, attention: LayerAttention
    ) -> torch.Tensor:
        config = self.config
        heads = layer.qkv(x).view(len(x), -1, config.head_dim)
        q, k, v = heads.tensor_split((config.num_heads, config.num_heads + config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = self._ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = self._ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        rotate(q, k)
        return attention.forward(index, q, k, v)


def _load_layer(config: LlamaConfig, weights: WeightSource, ops: Ops, index: int) -> LlamaLayer:
    attn, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    qkv = {f"{attn}.q_proj": config.q_size, f"{attn}.k_proj": config.kv_size, f"{attn}.v_proj": config.kv_size}
    gate_up = {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}

    def linear(parts: dict[str, int], in_size: int, bias: bool) -> Linear:
        """One projection from several of the checkpoint's, stacked along the output."""
        weight = weights.stacked({f"{name}.weight": (size, in_size) for name, size in parts.items()})
        return ops.linear(
            weight, weights.stacked({f"{name}.bias": (size,) for name, size in parts.items()}) if bias else None
        )

    def norm(name: str, size: int) -> torch.Tensor:
        return weights.tensor(f"{name}.weight", (size,))

    return LlamaLayer(
        input_norm=norm(f"model.layers.{index}.input_layernorm", hidden),
        qkv=linear(qkv, hidden, config.qkv_bias),
        q_norm=norm(f"{attn}.q_norm", head_dim) if config.qk_norm else None,
        k_norm=norm(f"{attn}.k_norm", head_dim) if config.qk_norm else None,
        o=linear({f"{attn}.o_proj": hidden}, config.q_size, config.o_bias),
        post_norm=norm(f"model.layers.{index}.post_attention_layernorm", hidden),
        gate_up=linear(gate_up, hidden, config.mlp_bias),
        down=linear({f"{mlp}.down_proj": hidden}, inner, config.mlp_bias),
    )
