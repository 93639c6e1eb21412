"""Finds a model on disk from what the user wrote: a directory, a GGUF file or a hub id. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from common.errors import UserError
from worker.models.gguf import ensure_converted
from worker.models.progress import console_progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model"]


def resolve_model_path(
    model_path: str, cache: Path, revision: str | None = None, download_dir: str | None = None
) -> Path:
    """The model's directory (config.json, safetensors, tokenizer).

    A .gguf file is converted into `cache` at its first use, a hub id is downloaded (its branch, tag or commit
    `revision`, into `download_dir` or the hub's own cache); both may take minutes and show progress on stderr. Raises
    UserError if there is no such model or it cannot be read.
    """
    check_model_path(model_path, revision)
    path = Path(model_path).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        with console_progress(f"Converting {path.name}") as progress:
            return ensure_converted(path, cache, progress)
    return _download(model_path, revision, download_dir)


def check_model_path(model_path: str, revision: str | None = None) -> None:
    """Raise UserError if `resolve_model_path` must fail: there is nothing here, and it is no hub id either."""
    path = Path(model_path).expanduser()
    if revision is not None and path.exists():
        raise UserError(f"--revision {revision} is for models of the hub, but {model_path} is on disk; leave it out.")
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise UserError(f"--model-path {model_path} is a file but not a .gguf one; give a model directory.")
    if path.exists() or _HUB_ID.fullmatch(model_path):
        return
    hint = "; the demo model is for `canopy serve demo`" if model_path == "demo" else ""
    raise UserError(f"--model-path {model_path} does not exist{hint}.")


def _download(hub_id: str, revision: str | None, download_dir: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(hub_id, revision=revision, cache_dir=download_dir, allow_patterns=_HUB_FILES))
    except GatedRepoError:
        raise UserError(f"The hub gives {hub_id} only to accounts with access; set HF_TOKEN to one's token.") from None
    except RevisionNotFoundError:
        raise UserError(f"--revision {revision} is no branch, tag or commit of {hub_id}; give one that is.") from None
    except RepositoryNotFoundError:
        raise UserError(f"--model-path {hub_id} is neither a directory nor a model of the hub.") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"--model-path {hub_id} is no directory here, and the hub cannot be reached ({type(error).__name__}); "
            "check the path or the network."
        ) from None
