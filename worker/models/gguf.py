"""Converts a GGUF file, once, into a checkpoint directory in the cache. Later starts map that directory's weights
within milliseconds, where reading the GGUF itself takes tens of seconds."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from safetensors import SafetensorError

from common.errors import UserError
from worker.models.embedding import POOLING_FILE
from worker.models.gguf_format import (
    ROPE_FACTORS,
    GgufModel,
    checkpoint_name,
    config_json,
    heads_to_unpermute,
    pooling_json,
    special_ids,
    unpermute,
)
from worker.models.progress import Progress

if TYPE_CHECKING:
    import torch

_SHARD_BYTES = 2 * 2**30  # bounds the memory a conversion needs
_LAYOUT_VERSION = 1  # part of the cache key; raise it when the converted files change

# shares of the whole conversion, as measured on a 135M model
_READ_SHARE = 0.25
_TOKENIZER_SHARE = 0.65


def ensure_converted(path: Path, cache_root: Path, progress: Progress) -> Path:
    """The directory with the converted model; converts if this file has not been yet.

    Safe when several processes ask at once: one converts, the others wait for it. A file counts as the same while its
    name, size and modification time are. Raises UserError if the file cannot be read or the cache not be written.
    """
    try:
        target = cache_root / "gguf" / f"{path.stem}-{_identity(path)}"
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / ".lock"):
            if not target.is_dir():
                _convert_into(path, target, progress)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot convert {path} into {cache_root}: {reason}.") from None
    return target


def _identity(path: Path) -> str:
    stat = path.stat()
    text = f"{_LAYOUT_VERSION}:{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert_into(path: Path, target: Path, progress: Progress) -> None:
    """Write beside the target and rename, so that the target is whole or absent."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _convert(path, folder, progress)
        folder.chmod(0o755)
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _convert(path: Path, folder: Path, progress: Progress) -> None:
    progress("reading", 0.0)
    reader = _open(path)
    tensors = {t.name: t for t in reader.tensors}
    model = _describe(reader, tensors)
    _write_json(folder / "config.json", config_json(model, _dtype_name(tensors)))
    _write_json(folder / "generation_config.json", special_ids(model))
    if (pooling := pooling_json(model)) is not None:
        (folder / POOLING_FILE).parent.mkdir()
        _write_json(folder / POOLING_FILE, pooling)
    progress("tokenizer", _READ_SHARE)
    _convert_tokenizer(path, folder, int(model.value("context_length")))
    _write_weights(model, tensors, folder, progress)
    progress("done", 1.0)


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except OSError:
        raise
    except Exception as error:  # the reader trips over damage in many ways
        raise UserError(f"{path} is damaged or not a GGUF file ({type(error).__name__}: {error}).") from None


def _describe(reader: Any, tensors: dict[str, Any]) -> GgufModel:
    """Scalars of the metadata; the vocabulary's long lists stay with the tokenizer's converter."""
    from gguf import GGUFValueType

    if "token_embd.weight" not in tensors:
        raise UserError("The GGUF file holds no token embedding, so it is no language model.")
    scalars = {
        name: field.contents()
        for name, field in reader.fields.items()
        if field.types and field.types[0] != GGUFValueType.ARRAY
    }
    factors = tensors.pop(ROPE_FACTORS, None)
    return GgufModel(
        metadata=scalars,
        tensor_names=frozenset(tensors),
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        rope_factors=None if factors is None else factors.data,
    )


def _convert_tokenizer(path: Path, folder: Path, context_len: int) -> None:
    """tokenizer.json and tokenizer_config.json, the latter with the chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except OSError:
        raise
    except Exception as error:
        raise UserError(f"Transformers cannot read the tokenizer in {path}: {error}.") from None
    tokenizer.model_max_length = context_len
    tokenizer.save_pretrained(str(folder), save_jinja_files=False)


def _write_weights(model: GgufModel, tensors: dict[str, Any], folder: Path, progress: Progress) -> None:
    """Shards of bounded size and their index."""
    from safetensors.torch import save_file

    names = {name: checkpoint_name(name) for name in tensors}
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    shard_bytes = total_bytes = shards = 0
    for done, (name, tensor) in enumerate(tensors.items(), start=1):
        weight = _dequantise(tensor, heads_to_unpermute(model, name))
        shard[names[name]] = weight
        shard_bytes += weight.nbytes
        total_bytes += weight.nbytes
        if shard_bytes >= _SHARD_BYTES or done == len(tensors):
            shards += 1
            file = f"model-{shards:05d}.safetensors"
            save_file(shard, str(folder / file), metadata={"format": "pt"})
            weight_map |= dict.fromkeys(shard, file)
            shard, shard_bytes = {}, 0
        progress("weights", _TOKENIZER_SHARE + (1 - _TOKENIZER_SHARE) * done / (len(tensors) + 1))
    _write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total_bytes}, "weight_map": weight_map},
    )


def _dequantise(tensor: Any, interleaved_heads: int) -> torch.Tensor:
    """A contiguous tensor: float16 and bfloat16 as they are, all else as float32 (exact)."""
    import torch
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = tensor.tensor_type
    try:
        array = tensor.data if kind == GGMLQuantizationType.F16 else dequantize(tensor.data, kind)
    except NotImplementedError:
        raise UserError(f"The GGUF file's quantisation {kind.name} is not supported.") from None
    if interleaved_heads:
        array = unpermute(array, interleaved_heads)
    weight = torch.from_numpy(array.copy() if not array.flags.writeable else array).contiguous()
    return weight.bfloat16() if kind == GGMLQuantizationType.BF16 else weight


def _dtype_name(tensors: dict[str, Any]) -> str:
    """The checkpoint's dtype: that of its embedding after conversion."""
    kinds = {"F16": "float16", "BF16": "bfloat16"}
    return kinds.get(tensors["token_embd.weight"].tensor_type.name, "float32")


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
