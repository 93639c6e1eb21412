"""Loads a model for whichever runner: what the CPU and the CUDA runner have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from worker.config import WorkerSettings
from worker.layers.ops import Ops
from worker.models.config import LlamaConfig, ModelConfig
from worker.models.decoder import Decoder
from worker.models.llama import LlamaModel
from worker.models.transformers_config import TransformersConfig
from worker.models.weights import DummyWeights, SafetensorsWeights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and the size of its weights in bytes."""

    model: Decoder
    weight_bytes: int


def _open_weights(
    settings: WorkerSettings, path: Path, *, dtype: torch.dtype, device: torch.device
) -> SafetensorsWeights | DummyWeights:
    if settings.load_format == "dummy":
        return DummyWeights(dtype=dtype, device=device)
    return SafetensorsWeights(path, dtype=dtype, device=device)


def load_model(
    settings: WorkerSettings, config: ModelConfig, path: Path, ops: Ops, *, dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    """The model of `config` with the weights that --load-format asks for."""
    with torch.inference_mode():
        if isinstance(config, LlamaConfig):
            weights = _open_weights(settings, path, dtype=dtype, device=device)
            return LoadedModel(LlamaModel(config, weights, ops), weights.bytes_loaded)
        from worker.models.transformers_model import load_transformers_model  # Transformers takes seconds to import

        assert isinstance(config, TransformersConfig)
        source = None if settings.load_format == "dummy" else path
        return LoadedModel(*load_transformers_model(config, source, ops, dtype=dtype, device=device))


def compute_dtype(settings: WorkerSettings, config: ModelConfig, *, default: str | None = None) -> torch.dtype:
    """--dtype, else `default`, else the checkpoint's own."""
    name = settings.dtype if settings.dtype != "auto" else default or config.dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
