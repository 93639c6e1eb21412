"""The way of a pass's index arrays to the GPU: one pinned buffer, one copy, one device twin.

Buffers rotate, so that the host can fill the next pass's while earlier copies may still be waiting in the stream.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from worker.attention.flashinfer_kernels import pinned_plan_buffer
from worker.engine.batch import Int32s

_ALIGN = 4  # int32s: kernels read 16 bytes at a time
_DEPTH = 3


class StagingSlot:
    """Host memory of one pass in flight."""

    def __init__(self, size: int) -> None:
        self.pinned = torch.zeros(size, dtype=torch.int32, pin_memory=True)
        self.host: Int32s = self.pinned.numpy()
        self.plans: dict[str, torch.Tensor] = {}
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]


class Upload:
    """Arrays of one pass on their way: `add` them all, `send`, then use the device tensors that `add` gave.

    Arrays of the same lengths added in the same order get the same device memory, pass after pass.
    """

    def __init__(self, slot: StagingSlot, device_twin: torch.Tensor) -> None:
        self._slot = slot
        self._twin = device_twin
        self._end = 0

    def add(self, array: Int32s) -> torch.Tensor:
        """Device twin of `array`, valid once sent."""
        start, end = self._end, self._end + len(array)
        self._slot.host[start:end] = array
        self._end = -(-end // _ALIGN) * _ALIGN
        return self._twin[start:end]

    def reserve(self, length: int) -> torch.Tensor:
        """Device memory for what a kernel computes."""
        start = self._end
        self._end = -(-(start + length) // _ALIGN) * _ALIGN
        return self._twin[start : start + length]

    def plan_buffer(self, name: str) -> torch.Tensor:
        """Pinned memory for the plan `name`."""
        if name not in self._slot.plans:
            self._slot.plans[name] = pinned_plan_buffer()
        return self._slot.plans[name]

    def send(self) -> None:
        """Start the copy."""
        self._twin[: self._end].copy_(self._slot.pinned[: self._end], non_blocking=True)


class Staging:
    """Rotating slots. `begin` waits, which it practically never has to, until the slot's last copies are done."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._slots = [StagingSlot(size) for _ in range(_DEPTH)]
        self._twin = torch.zeros(size, dtype=torch.int32, device=device)
        self._next = 0

    @property
    def size(self) -> int:
        """int32s that fit without growing."""
        return len(self._twin)

    def begin(self, needed: int) -> Upload:
        """An upload of up to `needed` int32s. End it with `end`, whatever happens. If they do not fit, the device twin
        moves, so graphs must have a staging of their own that never grows."""
        slot = self._slots[self._next]
        slot.copied.synchronize()
        if needed > len(slot.host):
            self._grow(needed)
            slot = self._slots[self._next]
        return Upload(slot, self._twin)

    def end(self) -> None:
        """All copies from the current slot have been started: let the next pass have the next one."""
        self._slots[self._next].copied.record()
        self._next = (self._next + 1) % _DEPTH

    def _grow(self, needed: int) -> None:
        """Larger buffers. Earlier passes keep theirs alive until their kernels have run (stream order)."""
        for slot in self._slots:
            slot.copied.synchronize()
        size = 1 << (needed - 1).bit_length()
        twin = torch.zeros(size, dtype=torch.int32, device=self._twin.device)
        slots = [StagingSlot(size) for _ in range(_DEPTH)]
        self._twin, self._slots = twin, slots  # both or, where memory runs out, none


class ResultSlots:
    """Pinned memory for the token ids of passes in flight, with the event that says they have arrived."""

    def __init__(self, max_rows: int, depth: int = _DEPTH + 1) -> None:
        self._buffers = [torch.zeros(max_rows, dtype=torch.int32, pin_memory=True) for _ in range(depth)]
        self._next = 0

    def fetch(self, token_ids: torch.Tensor) -> Callable[[], Int32s]:
        """Start copying `token_ids` to the host; the returned call waits and gives them. Call it before `depth` more
        fetches."""
        buffer = self._buffers[self._next][: len(token_ids)]
        self._next = (self._next + 1) % len(self._buffers)
        buffer.copy_(token_ids, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def wait() -> Int32s:
            done.synchronize()
            arrived: Int32s = np.array(buffer.numpy(), dtype=np.int32)
            return arrived

        return wait
