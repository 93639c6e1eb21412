"""Any other decoder, computed by Transformers' own modelling code with the engine's attention in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from common.errors import UserError
from worker.attention.base import LayerAttention
from worker.layers.ops import Linear, Ops
from worker.models.transformers_attention import IMPLEMENTATION, CurrentPass, PagedLayer, attach
from worker.models.transformers_config import TransformersConfig
from worker.models.transformers_rope import freeze_frequencies

_CHECK_POSITIONS = (5, 0, 3, 9)
_CHECK_ORDER = (2, 0, 3, 1)
_SAME = 1e-2  # relative; a token that another one reaches changes by far more


class TransformersModel:
    """A `Decoder` around a causal language model of Transformers.

    The model is cut in two: its body computes hidden states, and the rest, with a stand-in for the body, computes
    logits from them by its own code, whatever that does after the projection.
    """

    def __init__(self, config: TransformersConfig, model: Any, ops: Ops) -> None:
        self._architecture = config.architecture
        self._current = CurrentPass()
        for layer, name in enumerate(config.attention_modules):
            attach(model.get_submodule(name), PagedLayer(layer, config.head_dim, self._current))
        freeze_frequencies(model)
        linear = model.get_output_embeddings()
        self._projection = _Projection(linear, ops)
        model.set_submodule(next(name for name, m in model.named_modules() if m is linear), self._projection)
        self._body = model.get_submodule(config.body)
        self._given = _GivenHidden()
        model.set_submodule(config.body, self._given)
        self._rest = model
        self._check_tokens_apart(config)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: LayerAttention) -> torch.Tensor:
        """See `Decoder`."""
        self._current.attention = attention
        try:
            ids, places = input_ids.long().unsqueeze(0), positions.long().unsqueeze(0)
            output = self._body(input_ids=ids, position_ids=places, use_cache=False)
        finally:
            self._current.attention = None
        self._given.output_class = type(output)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Decoder`. They stand where the projection put its product."""
        self._given.hidden = hidden.unsqueeze(0)
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        logits = self._rest(input_ids=ids, use_cache=False).logits[0]
        product = self._projection.product
        assert product is not None
        if logits.data_ptr() != product.data_ptr():
            product.copy_(logits)
        self._given.hidden = self._projection.product = None
        return product

    def _check_tokens_apart(self, config: TransformersConfig) -> None:
        """With attention that looks at each token alone, packed tokens must not know of each other, nor of their places
        in the pass: anything else would leak from one request into another."""
        device = self._projection.weight.device
        ids = torch.arange(1, 1 + len(_CHECK_POSITIONS), device=device) % config.vocab_size
        positions = torch.tensor(_CHECK_POSITIONS, device=device) % config.context_len
        order = torch.tensor(_CHECK_ORDER, device=device)
        one_way = self.forward(ids, positions, _TokensAlone())[order].float()
        other_way = self.forward(ids[order], positions[order], _TokensAlone()).float()
        if bool((one_way - other_way).norm() > _SAME * one_way.norm()):
            raise UserError(
                f"The model's architecture {self._architecture} is not supported: its code in Transformers mixes "
                "tokens outside attention, or does not use the positions it is given."
            )


class _TokensAlone:
    """`LayerAttention` without any context, but not blind to keys and positions."""

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `LayerAttention`."""
        group = q.shape[1] // k.shape[1]
        return (q + (k + v).repeat_interleave(group, dim=1)).flatten(1)


class _GivenHidden(torch.nn.Module):
    """Stands for the body: returns hidden states that were computed before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self.output_class: Any = None

    def forward(self, *_: Any, **__: Any) -> Any:
        """The body's output, with nothing in it but hidden states [1, N, hidden_size]."""
        return self.output_class(last_hidden_state=self.hidden)


class _Projection(torch.nn.Module):
    """The output projection, by the engine's kernel for it."""

    def __init__(self, linear: torch.nn.Linear, ops: Ops) -> None:
        super().__init__()
        self.weight = linear.weight  # some models look at its dtype or device
        self._bias = linear.bias
        self._head: Linear = ops.head(linear.weight)
        self.product: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, N, hidden_size] -> [1, N, vocab_size]."""
        self.product = self._head(hidden[0])
        if self._bias is not None:
            self.product.add_(self._bias)
        return self.product.unsqueeze(0)


@dataclass(frozen=True, slots=True)
class LoadedTransformersModel:
    """A model, all its tensors by name, where they stay as long as it lives, and the size of its parameters."""

    model: TransformersModel
    tensors: Mapping[str, torch.Tensor]
    weight_bytes: int


def load_transformers_model(
    config: TransformersConfig, path: Path | None, ops: Ops, *, dtype: torch.dtype, device: torch.device
) -> LoadedTransformersModel:
    """The model with the weights in `path`, or with random ones. Raises UserError if they do not fit the config."""
    if path is None:
        gpus = [device] if device.type == "cuda" else []
        with torch.device(device), torch.random.fork_rng(gpus):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config.hf, **_options(config, dtype))
    else:
        model = _load(config, path, _options(config, dtype)).to(device)
    model.eval()
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    tensors = model.state_dict()
    return LoadedTransformersModel(TransformersModel(config, model, ops), tensors, num_bytes)


def load_beside(config: TransformersConfig, path: Path, dtypes: Mapping[str, torch.dtype]) -> Any:
    """Transformers' model with the weights in `path`, on the host, its tensors in the types that `dtypes` has for their
    names. Raises UserError if they do not fit the config.

    Any thread may call it while another model computes. So it is read in float32 first: Transformers makes the type it
    reads in torch's default type meanwhile, for all threads.
    """
    assert torch.get_default_dtype() == torch.float32
    model = _load(config, path, _options(config, torch.float32))
    model.eval()
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        tensor.data = tensor.data.to(dtypes.get(name, tensor.dtype), copy=True)  # of its own, not of a mapped file
    return model


def _options(config: TransformersConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "attn_implementation": IMPLEMENTATION,
        "trust_remote_code": config.trust_remote_code,
    }


def _load(config: TransformersConfig, path: Path, options: dict[str, Any]) -> Any:
    transformers_logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            config=config.hf,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"Cannot load the weights in {path}: {first}") from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"The checkpoint has no tensor {missing[0]} ({len(missing)} are missing); its files are incomplete or do "
            "not fit its config."
        )
    return model
