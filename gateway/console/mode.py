"""The console put together: what this process notes, what the others note, and the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.console.hub import Hub
from gateway.console.messages import Slice
from gateway.console.recorder import Recorder
from gateway.fleet.registry import Registry
from gateway.processes.siblings import Siblings
from gateway.proxy.forwarder import Forwarder

_WHAT = "console"
_SLICES = msgspec.msgpack.Decoder(Slice)


def make_console(
    registry: Registry, forwarder: Forwarder, siblings: Siblings | None, process: int, facts: Mapping[str, Any]
) -> Hub:
    """The console of process number `process`; `siblings`: how it reaches the others, if there are any."""
    recorder = Recorder(forwarder, registry, process)

    async def ask_all(since: Mapping[int, int]) -> dict[int, Slice]:
        slices = {process: recorder.slice(since.get(process, 0))}
        if siblings is not None:
            answers = await siblings.ask_others(_WHAT, since)
            slices |= {index: _SLICES.decode(answer) for index, answer in answers.items()}
        return slices

    if siblings is not None:
        siblings.tell(_WHAT, lambda since: msgspec.msgpack.encode(recorder.slice(since)))
    return Hub(registry, ask_all, facts, lambda: forwarder.draining)
