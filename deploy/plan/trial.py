"""One trial: a fleet of so many replicas under the load, or under slices of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.plan.fleet import FleetSpec, Served, VirtualFleet
from deploy.plan.measured import Measured, measured
from deploy.plan.slices import Slice
from deploy.plan.workload import Ask, Workload


@dataclass(frozen=True, slots=True)
class Trial:
    """May be sent to another process."""

    spec: FleetSpec
    workload: Workload
    slices: Sequence[Slice]
    replicas: int

    def run(self) -> Measured:
        """What its clients saw."""
        fleet = VirtualFleet(self.spec, self.replicas)
        counted: list[Served] = []
        for part in self.slices:
            served = fleet.run(self._asks(part))
            counted += [one for one in served if one.ask.arrival_s >= part.count_s]
        return measured(counted, self._span_s(counted))

    def _asks(self, part: Slice) -> Iterator[Ask]:
        return self.workload.asks(part.begin_s, part.end_s)

    def _span_s(self, counted: Sequence[Served]) -> float:
        """Of a whole load: from its first request to its last answer."""
        if len(self.slices) > 1 or not counted:
            return sum(part.counted_s for part in self.slices)
        first_s = counted[0].ask.arrival_s
        return max(one.ask.arrival_s + one.latency_s for one in counted) - first_s


def run_trial(trial: Trial) -> Measured:
    """For process pools."""
    return trial.run()
