"""Loads a model for whichever runner: what the CPU and the CUDA runner have in common."""

from __future__ import annotations

from pathlib import Path

import torch

from worker.config import WorkerSettings
from worker.layers.ops import Ops
from worker.models.config import ModelConfig
from worker.models.llama import LlamaModel
from worker.models.weights import DummyWeights, SafetensorsWeights, WeightSource


def open_weights(
    settings: WorkerSettings, path: Path, *, dtype: torch.dtype, device: torch.device
) -> SafetensorsWeights | DummyWeights:
    """The source of the model's tensors that --load-format asks for."""
    if settings.load_format == "dummy":
        return DummyWeights(dtype=dtype, device=device)
    return SafetensorsWeights(path, dtype=dtype, device=device)


def build_model(config: ModelConfig, weights: WeightSource, ops: Ops) -> LlamaModel:
    """The model of `config`. Every supported architecture is a variant of one class so far."""
    with torch.inference_mode():
        return LlamaModel(config, weights, ops)


def compute_dtype(settings: WorkerSettings, config: ModelConfig, *, default: str | None = None) -> torch.dtype:
    """--dtype, else `default`, else the checkpoint's own."""
    name = settings.dtype if settings.dtype != "auto" else default or config.dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
