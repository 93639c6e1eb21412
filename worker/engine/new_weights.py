"""Other weights for a model that is being served: whether a checkpoint has them is said before anything changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from common.errors import UserError
from common.paths import cache_root
from worker.config import WorkerSettings
from worker.models.config import ModelConfig, load_model_config, read_raw_config, uses_transformers
from worker.models.paths import resolve_model_path
from worker.models.transformers_config import TransformersConfig, read_hf_config

NO_ROOM = "There is no memory for other weights beside those in use; give the machine more, or start anew with them."

# What two checkpoints of one model may differ in: how weights are stored, who wrote them, and ids of tokens, which stay
# those that the replica has started with.
_OF_NO_WEIGHT = frozenset(
    {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
    | {"eos_token_ids", "bos_token_id", "eos_token_id", "pad_token_id"}
)


@dataclass(frozen=True, slots=True)
class InPlace:
    """`NewWeights` that overwrite those in use where they are: pairs of a tensor in use and its successor, which may be
    on another device. Whatever holds on to the former, CUDA graphs for one, computes with the latter."""

    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]

    @torch.inference_mode()
    def use(self) -> None:
        """See `NewWeights`. Begins when no kernel reads the old ones any more, and returns when all are copied."""
        _wait_for_gpu()
        for used, new in self.pairs:
            used.copy_(new)
        _wait_for_gpu()


def _wait_for_gpu() -> None:
    """For all its streams."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def checkpoint_of_same_model(model_path: str, settings: WorkerSettings, config: ModelConfig, num_bytes: int) -> Path:
    """The directory of a checkpoint with weights for the model of `config`, whatever number format they are stored in.

    `model_path` is a directory, or a .gguf file, which is converted at its first use; `num_bytes` is the size of the
    weights in use. Raises UserError if it is neither, is of another model, or if there is no memory for it.
    """
    if not _is_there(model_path):
        raise UserError(f"{model_path} is neither a directory nor a .gguf file on the replica's machine.")
    path = resolve_model_path(model_path, cache_root(os.environ))
    differences = _differences(path, settings, config)
    if differences:
        raise UserError(
            f"{model_path} is not of the model that is served: it differs in {', '.join(differences)}. Start a replica "
            "with it instead."
        )
    copies = 2 if isinstance(config, TransformersConfig) else 1  # see `load_beside`
    if psutil.virtual_memory().available < copies * num_bytes:
        raise UserError(NO_ROOM)
    return path


def _is_there(model_path: str) -> bool:
    try:
        path = Path(model_path).expanduser()
        return path.is_dir() or (path.is_file() and path.suffix.lower() == ".gguf")
    except (OSError, ValueError, RuntimeError):  # no path at all
        return False


def _differences(path: Path, settings: WorkerSettings, config: ModelConfig) -> list[str]:
    """The names of what a checkpoint's configuration has otherwise than `config`. Runs no code of a model: that would
    change torch's default type meanwhile, for all threads."""
    overrides, is_embedding = settings.json_model_override_args, settings.is_embedding
    raw, pooling = read_raw_config(path, overrides, is_embedding=is_embedding)
    if raw["architectures"][0] != config.architecture:
        return [f"its architecture ({raw['architectures'][0]}, not {config.architecture})"]
    if isinstance(config, TransformersConfig) != uses_transformers(raw, settings.model_impl):
        return ["the code that runs it"]
    if isinstance(config, TransformersConfig):
        hf = read_hf_config(path, raw, trust_remote_code=settings.trust_remote_code)
        served, found = config.hf.to_dict() | {"pooling": config.pooling}, hf.to_dict() | {"pooling": pooling}
    else:
        other = load_model_config(
            path,
            context_length=settings.context_length,
            overrides=overrides,
            model_impl=settings.model_impl,
            is_embedding=is_embedding,
        )
        served, found = asdict(config), asdict(other)
    return [name for name in sorted(served | found) if _differs(name, served, found)]


def _differs(name: str, served: dict[str, Any], found: dict[str, Any]) -> bool:
    return name not in _OF_NO_WEIGHT and served.get(name) != found.get(name)
