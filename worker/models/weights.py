"""Where a model's tensors come from: safetensors files mapped into memory, or random numbers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import orjson
import torch
from safetensors import SafetensorError, safe_open

from common.errors import UserError

Shape = tuple[int, ...]

_INDEX = "model.safetensors.index.json"
_BODY = "model."  # names lack it where a checkpoint has no output projection, as those of embedding models
_DUMMY_STD = 0.02  # the usual initialiser range: activations stay finite through many layers


class WeightSource(Protocol):
    """Hands out tensors in the dtype and on the device it was made for; `bytes_loaded` counts what it handed out."""

    @property
    def bytes_loaded(self) -> int: ...

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        """The tensor of this name in the checkpoint. Raises UserError if it is missing or of another shape."""
        ...

    def stacked(self, parts: Mapping[str, Shape]) -> torch.Tensor:
        """Several tensors one after the other along the first dimension, as one."""
        ...


class SafetensorsWeights:
    """A directory of safetensors files. On a CPU an unconverted single tensor stays a view of the mapped file, so
    replicas on one machine share its memory; with `own_memory` nothing depends on the files once it is handed out."""

    def __init__(self, path: Path, *, dtype: torch.dtype, device: torch.device, own_memory: bool = False) -> None:
        self._dtype = dtype
        self._device = device
        self._own_memory = own_memory
        self._files: dict[Path, Any] = {}
        self._where = self._locate(path)
        self.bytes_loaded = 0

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        loaded = self._read(name, shape).to(self._device, self._dtype, copy=self._own_memory)
        self.bytes_loaded += loaded.nbytes
        return loaded

    def stacked(self, parts: Mapping[str, Shape]) -> torch.Tensor:
        if len(parts) == 1:
            return self.tensor(*next(iter(parts.items())))
        tail = next(iter(parts.values()))[1:]
        out = torch.empty((sum(s[0] for s in parts.values()), *tail), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts.items():
            out[start : start + shape[0]].copy_(self._read(name, shape))
            start += shape[0]
        self.bytes_loaded += out.nbytes
        return out

    def _read(self, name: str, shape: Shape) -> torch.Tensor:
        stored = name if name in self._where else name.removeprefix(_BODY)
        file = self._where.get(stored)
        if file is None:
            raise UserError(f"The checkpoint has no tensor {name}; its files are incomplete or do not fit its config.")
        tensor: torch.Tensor = self._open(file).get_tensor(stored)
        if tuple(tensor.shape) != shape:
            raise UserError(f"Tensor {name} has the shape {list(tensor.shape)}, but the config asks for {list(shape)}.")
        return tensor

    def _locate(self, path: Path) -> dict[str, Path]:
        """Tensor name -> file."""
        index = path / _INDEX
        if index.is_file():
            try:
                weight_map: dict[str, str] = orjson.loads(index.read_bytes())["weight_map"]
            except (orjson.JSONDecodeError, KeyError, OSError) as error:
                raise UserError(f"Cannot read the weight index {index}: {error}.") from None
            return {name: path / file for name, file in weight_map.items()}
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise UserError(f"There are no .safetensors weights in {path}.")
        return {name: file for file in files for name in self._open(file).keys()}  # noqa: SIM118 not a mapping

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(str(file), framework="pt")
            except FileNotFoundError:
                raise UserError(f"The weight file {file} is missing.") from None
            except (SafetensorError, OSError) as error:
                raise UserError(f"Cannot read the weight file {file}: {error}.") from None
        return self._files[file]


class RecordedWeights:
    """Remembers what another source handed out. Its user keeps these very tensors, so that the numbers of another
    checkpoint can be put into them."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._handed_out: list[tuple[Mapping[str, Shape], torch.Tensor]] = []

    @property
    def bytes_loaded(self) -> int:
        return self._source.bytes_loaded

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        return self._record({name: shape}, self._source.tensor(name, shape))

    def stacked(self, parts: Mapping[str, Shape]) -> torch.Tensor:
        return self._record(dict(parts), self._source.stacked(parts))

    def beside(self, others: WeightSource) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor handed out, and what `others`, of any device, has in its place. Raises UserError where they lack
        one or have another shape."""
        return [(tensor, others.stacked(parts)) for parts, tensor in self._handed_out]

    def _record(self, parts: Mapping[str, Shape], tensor: torch.Tensor) -> torch.Tensor:
        self._handed_out.append((parts, tensor))
        return tensor


class DummyWeights:
    """Random weights of the asked shapes, for speed work. The same seed gives the same model."""

    def __init__(self, *, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self._dtype = dtype
        self._device = device
        self._seed = seed
        self.bytes_loaded = 0

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        if name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            generator = torch.Generator(self._device).manual_seed(self._seed + zlib.crc32(name.encode()))
            out.normal_(0.0, _DUMMY_STD, generator=generator)
        self.bytes_loaded += out.nbytes
        return out

    def stacked(self, parts: Mapping[str, Shape]) -> torch.Tensor:
        return torch.cat([self.tensor(name, shape) for name, shape in parts.items()])
