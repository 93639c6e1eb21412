"""Records steps with torch.profiler: what the CPU did, and with CUPTI what the GPU did."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from worker.engine.profiling import ProfileFault
from worker.ipc.messages import StartProfile

_ACTIVITIES = {"CPU": ProfilerActivity.CPU, "GPU": ProfilerActivity.CUDA}
NO_GPU = "This replica computes on the CPU; leave GPU out of activities."
NO_CUPTI = "This build of torch cannot record what the GPU does; leave GPU out of activities."


class TorchProfiler:
    """Implements Profiler, for the device that the replica computes on."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device != "cpu"
        self._profile: profile | None = None

    def start(self, asked: StartProfile) -> None:
        activities = asked.activities or (["CPU", "GPU"] if self._on_gpu else ["CPU"])
        if "GPU" in activities and not self._on_gpu:
            raise ProfileFault(NO_GPU, param="activities")
        supported = supported_activities()  # type: ignore[no-untyped-call]
        if not {_ACTIVITIES[name] for name in activities} <= supported:
            raise ProfileFault(NO_CUPTI, param="activities")
        self._profile = profile(
            activities=[_ACTIVITIES[name] for name in activities],
            record_shapes=asked.record_shapes,
            with_stack=asked.with_stack,
        )
        self._profile.start()

    def range(self, name: str) -> AbstractContextManager[object]:
        recorded: AbstractContextManager[object] = record_function(name)
        return recorded

    def stop(self, path: Path) -> None:
        assert self._profile is not None
        recorded, self._profile = self._profile, None
        if self._on_gpu:
            torch.cuda.synchronize()  # what is in flight belongs to it
        try:
            recorded.stop()
            recorded.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise ProfileFault(f"The profile could not be written to {path}: {error}.", status=500) from None
