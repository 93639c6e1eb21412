"""Measured steps, one JSON object a line: what benchmarks/step_times.py writes and fit.py reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.errors import UserError
from worker.engine.sim.profile import DeviceMemory
from worker.engine.sim.step_time import StepShape


class MeasuredDevice(msgspec.Struct, frozen=True, kw_only=True, tag="device"):
    """The first line: what the steps ran on. `source` tells it to people: machine, versions, date."""

    device: str
    model: str
    source: str
    dtype: str
    page_size: int
    memory: DeviceMemory


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A step and the times between its result and the one before, seconds, in the order they were measured."""

    kind: str
    shape: StepShape
    times_s: list[float]


def read_measured(path: Path) -> tuple[MeasuredDevice, Sequence[MeasuredStep]]:
    """All of a file. Raises UserError."""
    decoder = msgspec.json.Decoder(MeasuredDevice | MeasuredStep)
    try:
        lines = decoder.decode_lines(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} holds no measured steps: {error}.") from None
    devices = [line for line in lines if isinstance(line, MeasuredDevice)]
    steps = [line for line in lines if isinstance(line, MeasuredStep)]
    if len(devices) != 1 or not steps:
        raise UserError(f"{path} must hold one device and its steps; make it with python -m benchmarks.step_times.")
    return devices[0], steps
