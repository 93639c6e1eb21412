"""The forward of one decode alone, where reading the weights is all that counts: five kernels a layer, each started
before the one ahead has ended (see worker/layers/cuda/gemv.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from worker.attention.kv_pool import KVPool
from worker.engine.cuda.attention import AttentionPass
from worker.layers.cuda.decode_attention import DecodeScratch, decode_attention
from worker.layers.cuda.gemv import GemvTile, gemv
from worker.layers.cuda.ops import CudaHead, CudaLinear
from worker.layers.ops import Linear
from worker.models.decoder import Decoder
from worker.models.llama import LlamaModel

# Measured on an H200 for Llama-3-8B's shapes (docs/performance.md).
_QKV = GemvTile(2, 1024, 4)
_O = GemvTile(4, 1024, 4)
_GATE_UP = GemvTile(1, 4096, 4)
_DOWN = GemvTile(4, 1024, 4)
_HEAD = GemvTile(2, 1024, 4)


@dataclass(frozen=True, slots=True)
class _Weights:
    input_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class SingleDecode:
    """Computes passes of one decode with the weights of a Llama model. Make it with `of`."""

    def __init__(self, model: LlamaModel, layers: list[_Weights], pool: KVPool, cos_sin: torch.Tensor) -> None:
        config = self._config = model.config
        self._embedding = model.embedding
        self._layers = layers
        self._final_norm = model.final_norm
        head = model.head
        assert isinstance(head, CudaHead)
        self._head = head
        self._pool = pool
        self._cos_sin = cos_sin
        like = model.embedding
        self._qkv = like.new_empty((1, config.q_size + 2 * config.kv_size))
        self._attended = like.new_empty((1, config.q_size))
        self._inner = like.new_empty((1, config.intermediate_size))
        self._scratch = DecodeScratch.make(1, config.num_heads, config.num_kv_heads, config.head_dim, like.device)

    @staticmethod
    def of(model: Decoder, pool: KVPool, cos_sin: torch.Tensor | None) -> SingleDecode | None:
        """None if the model is another one or has what these kernels lack: biases, or norms of queries and keys."""
        if not isinstance(model, LlamaModel) or cos_sin is None or model.config.qk_norm:
            return None
        layers = []
        for layer in model.layers:
            weights = [_plain(linear) for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
            qkv, o, gate_up, down = weights
            if qkv is None or o is None or gate_up is None or down is None:
                return None
            layers.append(_Weights(layer.input_norm, qkv, o, layer.post_norm, gate_up, down))
        return SingleDecode(model, layers, pool, cos_sin)

    def logits(self, ids: torch.Tensor, work: AttentionPass) -> torch.Tensor:
        """fp32 [1, vocab] for the token `ids` int32 [1]; its key and value go to the cache."""
        assert work.decode is not None
        eps, pages = self._config.rms_norm_eps, work.decode.pages
        residual = F.embedding(ids, self._embedding)
        for i, layer in enumerate(self._layers):
            gemv(residual, layer.qkv, self._qkv, _QKV, norm=(layer.input_norm, eps), dependent=True)
            decode_attention(
                self._qkv,
                self._cos_sin,
                work.positions,
                work.slots,
                pages.indptr,
                pages.indices,
                self._pool.k[i],
                self._pool.v[i],
                self._attended,
                self._scratch,
                dependent=True,
            )
            gemv(self._attended, layer.o, residual, _O, add=True, dependent=True)
            gemv(
                residual, layer.gate_up, self._inner, _GATE_UP, norm=(layer.post_norm, eps), gated=True, dependent=True
            )
            gemv(self._inner, layer.down, residual, _DOWN, add=True, dependent=True)
        logits = self._head.latest(1)
        gemv(residual, self._head.weight, logits, _HEAD, norm=(self._final_norm, eps), dependent=True)
        return logits


def _plain(linear: Linear) -> torch.Tensor | None:
    """The weight of a product without a bias."""
    assert isinstance(linear, CudaLinear)
    return linear.weight if linear.bias is None else None
