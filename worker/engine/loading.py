"""Loads a model for the CPU or the CUDA runner, and later other weights for it, while it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from worker.config import WorkerSettings
from worker.layers.ops import Ops
from worker.models.config import LlamaConfig, ModelConfig
from worker.models.decoder import Decoder
from worker.models.llama import LlamaModel
from worker.models.transformers_config import TransformersConfig
from worker.models.weights import DummyWeights, RecordedWeights, SafetensorsWeights, WeightSource

_HOST = torch.device("cpu")

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A model on a GPU and the size of its weights in bytes. `successors` reads another checkpoint of it: each tensor
    in use, and on the host what is to take its place. Any thread may call it; it raises UserError."""

    model: Decoder
    weight_bytes: int
    successors: Callable[[Path], Pairs]


@dataclass(frozen=True, slots=True)
class HostModel:
    """A model on the CPU and the size of its weights in bytes. Its products have layouts of their own, so `another`
    makes a second model from another checkpoint of it. Any thread may call it; it raises UserError."""

    model: Decoder
    weight_bytes: int
    another: Callable[[Path], Decoder]


def load_on_gpu(
    settings: WorkerSettings, config: ModelConfig, path: Path, ops: Ops, *, dtype: torch.dtype, device: torch.device
) -> GpuModel:
    """The model of `config` with the weights that --load-format asks for."""
    if isinstance(config, LlamaConfig):
        weights = RecordedWeights(_open_weights(settings, path, dtype, device))
        llama = LlamaModel(config, weights, ops)
        return GpuModel(llama, weights.bytes_loaded, lambda other: weights.beside(_for_later(other, dtype)))
    from worker.models.transformers_model import load_beside, load_transformers_model  # takes seconds to import

    assert isinstance(config, TransformersConfig)
    hf_config, source = config, _or_random(settings, path)
    loaded = load_transformers_model(config, source, ops, dtype=dtype, device=device)
    tensors = loaded.tensors
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}

    def successors(other: Path) -> Pairs:
        found = load_beside(hf_config, other, dtypes).state_dict()
        return [(tensor, found[name]) for name, tensor in tensors.items()]

    return GpuModel(loaded.model, loaded.weight_bytes, successors)


def load_on_cpu(
    settings: WorkerSettings, config: ModelConfig, path: Path, ops: Ops, *, dtype: torch.dtype
) -> HostModel:
    """The model of `config` with the weights that --load-format asks for."""
    if isinstance(config, LlamaConfig):
        llama_config, weights = config, _open_weights(settings, path, dtype, _HOST)
        llama = LlamaModel(config, weights, ops)
        return HostModel(
            llama, weights.bytes_loaded, lambda other: LlamaModel(llama_config, _for_later(other, dtype), ops)
        )
    from worker.models.transformers_model import TransformersModel, load_beside, load_transformers_model

    assert isinstance(config, TransformersConfig)
    hf_config, source = config, _or_random(settings, path)
    loaded = load_transformers_model(config, source, ops, dtype=dtype, device=_HOST)
    dtypes = {name: tensor.dtype for name, tensor in loaded.tensors.items()}
    return HostModel(
        loaded.model,
        loaded.weight_bytes,
        lambda other: TransformersModel(hf_config, load_beside(hf_config, other, dtypes), ops),
    )


def _open_weights(
    settings: WorkerSettings, path: Path, dtype: torch.dtype, device: torch.device
) -> SafetensorsWeights | DummyWeights:
    if settings.load_format == "dummy":
        return DummyWeights(dtype=dtype, device=device)
    return SafetensorsWeights(path, dtype=dtype, device=device)


def _or_random(settings: WorkerSettings, path: Path) -> Path | None:
    return None if settings.load_format == "dummy" else path


def _for_later(path: Path, dtype: torch.dtype) -> WeightSource:
    """What is there when the model takes it on, whatever becomes of the files meanwhile."""
    return SafetensorsWeights(path, dtype=dtype, device=_HOST, own_memory=True)


def compute_dtype(settings: WorkerSettings, config: ModelConfig, *, default: str | None = None) -> torch.dtype:
    """--dtype, else `default`, else the checkpoint's own."""
    name = settings.dtype if settings.dtype != "auto" else default or config.dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
