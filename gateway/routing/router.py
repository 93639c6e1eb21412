"""From a request to a worker: which model it means, who serves that, whom the policy picks. Faults: RouteFault."""

from __future__ import annotations

from collections.abc import Collection

from common.errors import HttpFault
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Policy, RouteRequest

RETRY_AFTER_S = 1


class RouteFault(HttpFault):
    """No worker can be chosen."""


class Router:
    """Applies one policy to the registry's current snapshot."""

    def __init__(self, registry: Registry, policy: Policy) -> None:
        self._registry = registry
        self.policy = policy

    def route(self, request: RouteRequest, tried: Collection[str] = ()) -> Choice:
        """Choose a worker whose URL is not in `tried`. Raises RouteFault."""
        snapshot = self._registry.snapshot
        candidates = candidates_for(snapshot, request.model)
        if tried:
            candidates = tuple(worker for worker in candidates if worker.url not in tried)
            if not candidates:
                raise RouteFault(503, "Every ready worker has failed this request.", code="no_worker_left")
        return self.policy.choose(request, snapshot, candidates)

    def another_exists(self, request: RouteRequest, tried: Collection[str]) -> bool:
        """Whether `route` would still find a worker."""
        try:
            candidates = candidates_for(self._registry.snapshot, request.model)
        except RouteFault:
            return False
        return any(worker.url not in tried for worker in candidates)


def candidates_for(snapshot: Snapshot, model: str | None) -> tuple[WorkerView, ...]:
    """The ready workers of a model; with None, of the only model there is. Raises RouteFault."""
    if model is not None:
        candidates = snapshot.ready.get(model)
        if candidates:
            return candidates
    models = snapshot.models
    if model is None and len(models) > 1:
        raise RouteFault(400, f"Say which model: {', '.join(sorted(models))}.", param="model", code="model_missing")
    if model is None and models:
        candidates = snapshot.ready.get(next(iter(models)))
        if candidates:
            return candidates
    everyone_known = all(worker.model for worker in snapshot.workers)
    if model is not None and models and model not in models and everyone_known:
        raise RouteFault(404, f"The model {model!r} does not exist.", param="model", code="model_not_found")
    raise RouteFault(503, "No worker is ready; try again shortly.", code="no_ready_worker")
