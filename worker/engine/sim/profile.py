"""What a simulated device is like: a JSON file, packaged under profiles/ or the user's own. Written by fit.py."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import msgspec

from common.errors import UserError
from worker.engine.sim.step_time import StepCosts

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Tokens = Annotated[int, msgspec.Meta(ge=1)]


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the device, and of what the model takes. `workspace_bytes`: graphs and buffers beside weights and pool."""

    total_bytes: Annotated[int, msgspec.Meta(gt=0)]
    free_bytes: Annotated[int, msgspec.Meta(gt=0)]  # before the weights are loaded
    weight_bytes: Bytes
    workspace_bytes: Bytes
    kv_bytes_per_token: Annotated[int, msgspec.Meta(gt=0)]


class SimProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device with a model loaded. `source` says where the figures come from.

    `answer_tokens` are the least and most tokens after which an answer ends by itself, drawn for each prompt with equal
    chances for equal ratios; null: answers end by max_new_tokens or the context only.
    """

    device: str
    model: str
    source: str
    dtype: str
    page_size: Tokens  # without --page-size
    memory: DeviceMemory
    costs: StepCosts
    answer_tokens: tuple[Tokens, Tokens] | None

    def __post_init__(self) -> None:
        if self.memory.free_bytes > self.memory.total_bytes:
            raise ValueError("memory.free_bytes exceeds memory.total_bytes")
        if self.answer_tokens is not None and self.answer_tokens[0] > self.answer_tokens[1]:
            raise ValueError("answer_tokens must be [least, most]")


def load_profile(name_or_file: str) -> SimProfile:
    """A packaged profile by name, or one from a file. Raises UserError."""
    path = _find(name_or_file)
    try:
        return msgspec.json.decode(path.read_bytes(), type=SimProfile)
    except OSError as error:
        raise UserError(f"--sim-profile: cannot read {path}: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--sim-profile: {path} is no profile: {_lower_first(str(error))}.") from None


def _find(name_or_file: str) -> Path | Traversable:
    if name_or_file.endswith(".json") or "/" in name_or_file:
        return Path(name_or_file)
    folder = resources.files("worker.engine.sim") / "profiles"
    names = sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))
    if name_or_file not in names:
        raise UserError(
            f"--sim-profile: there is no profile {name_or_file}; built in are {', '.join(names)}, or name a .json file."
        )
    return folder / f"{name_or_file}.json"


def _lower_first(text: str) -> str:
    return re.sub(r"^[A-Z](?=[a-z])", lambda match: match[0].lower(), text)
