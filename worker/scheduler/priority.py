"""Priorities of requests as ranks: lower is more urgent, whichever way the operator counts."""

from __future__ import annotations

from dataclasses import dataclass

from worker.config import WorkerSettings
from worker.scheduler.constants import LEAST_URGENT_RANK


@dataclass(frozen=True, slots=True)
class PriorityRules:
    """How this replica reads the request field `priority`. `scheduled`: the queue honours it."""

    scheduled: bool
    low_values_first: bool
    default: int | None
    preemption_threshold: int | None  # difference of ranks that a preemption must exceed; None = never

    @classmethod
    def of(cls, settings: WorkerSettings) -> PriorityRules:
        scheduled = settings.schedules_by_priority
        preempts = scheduled and not settings.disable_priority_preemption
        return cls(
            scheduled=scheduled,
            low_values_first=settings.schedule_low_priority_values_first,
            default=settings.default_priority_value,
            preemption_threshold=settings.priority_scheduling_preemption_threshold if preempts else None,
        )

    def rank(self, priority: int | None) -> int:
        """The rank of a request. Without a priority, its own or by default, it is the least urgent of all."""
        value = self.default if priority is None else priority
        if value is None:
            return LEAST_URGENT_RANK
        return value if self.low_values_first else -value
