"""Which model is served, from where, and under which name."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import model_validator

from common.settings import Settings, option
from common.settings.types import JsonObject, TokenCount

_option = partial(option, category="Model and tokenizer")


class ModelSettings(Settings):
    """Model and tokenizer."""

    model_path: str = _option(..., "directory, .gguf file or hub id of the model", aliases=["model"], min_length=1)
    tokenizer_path: str | None = _option(None, "tokenizer, if not the model's own", min_length=1, path=True)
    served_model_name: str | None = _option(
        None, "name clients use; without it the last part of the model path", min_length=1
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = _option(
        "auto", "where weights come from; dummy = random"
    )
    skip_tokenizer_init: bool = _option(False, "token ids in and out only; no tokenizer files are needed")
    context_length: TokenCount | None = _option(None, "longest prompt + answer in tokens; without it the model's", ge=8)
    model_impl: Literal["auto", "canopy", "transformers"] = _option(
        "auto", "code that runs the model; auto = canopy's own where it knows the architecture"
    )
    is_embedding: bool = _option(
        False, "make embeddings, no text; needless where files of sentence-transformers say so"
    )
    trust_remote_code: bool = _option(False, "run Python code that the model's repository brings")
    weight_version: str = _option("default", "name of these weights, repeated in answers")
    json_model_override_args: JsonObject = _option({}, "keys of config.json to replace, as JSON")
    revision: str | None = _option(None, "branch, tag or commit of a hub model", min_length=1)
    download_dir: str | None = _option(
        None, "where hub models are kept; without it the hub's cache", min_length=1, path=True
    )

    tokenizer_mode: Literal["auto", "slow"] = _option(
        "auto", "kind of tokenizer", not_built="the fast one is always used, leave it out"
    )
    tokenizer_backend: str = _option("huggingface", "tokenizer library", not_built="leave it out")
    tokenizer_worker_num: int = _option(
        1, "tokenizer processes", not_built="one process tokenizes on several threads; add --replicas instead"
    )
    detokenizer_worker_num: int = _option(1, "detokenizer processes", not_built="add --replicas instead")
    model_loader_extra_config: JsonObject = _option({}, "options of the weight loader", not_built="leave it out")
    enable_multimodal: bool = _option(
        False, "serve images, video and audio", not_built="only text is served, leave it out"
    )

    @model_validator(mode="after")
    def _check_name(self) -> ModelSettings:
        if self.served_model_name is not None and ":" in self.served_model_name:
            raise ValueError("--served-model-name must not hold a colon; choose another name.")
        return self
