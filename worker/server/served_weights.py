"""Which weights a replica's answers are by, as far as its clients are told."""

from __future__ import annotations

from dataclasses import dataclass

from worker.ipc.messages import WeightsUpdated


@dataclass(slots=True)
class ServedWeights:
    """Owned by whoever takes the scheduler's messages: news taken before an update are of the old weights, those after
    it of the new ones."""

    model_path: str
    version: str

    def update(self, message: WeightsUpdated) -> None:
        """Others are in use from now on."""
        self.model_path = message.model_path
        if message.weight_version is not None:
            self.version = message.weight_version
