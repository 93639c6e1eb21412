"""From a request to a worker: which model it means, who serves that, whom the policy picks. Faults: RouteFault."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from common.errors import HttpFault
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import WorkerStatus, WorkerView
from gateway.routing.policy import Choice, Offer, Policy, RouteRequest

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
        if request.target:
            candidates = targeted(snapshot, candidates, request.target)
        if tried:
            resting = () if request.target else snapshot.resting.get(candidates[0].model, ())
            candidates = untried(candidates, tried) or untried(resting, tried)
            if not candidates:
                raise RouteFault(503, "Every ready worker has failed this request.", code="no_worker_left")
        return self.policy.choose(request, snapshot, candidates)

    def explain(self, request: RouteRequest) -> list[Offer]:
        """What `route` would choose now, first, and the others behind it. Changes nothing. Raises RouteFault."""
        snapshot = self._registry.snapshot
        candidates = candidates_for(snapshot, request.model)
        if request.target:
            candidates = targeted(snapshot, candidates, request.target)
        return self.policy.explain(request, snapshot, candidates)

    def another_after_s(self, request: RouteRequest, tried: Collection[str], now_s: float) -> float | None:
        """In how many seconds `route` finds a worker that is not to rest any more; None: there is none."""
        snapshot = self._registry.snapshot
        try:
            candidates = candidates_for(snapshot, request.model)
        except RouteFault:
            return None
        if request.target:
            return None
        others = untried(candidates, tried) or untried(snapshot.resting.get(candidates[0].model, ()), tried)
        rests_s = [max(worker.guard.rest_until_s - now_s, 0.0) for worker in others]
        return min(rests_s) if rests_s else None


def untried(workers: Sequence[WorkerView], tried: Collection[str]) -> tuple[WorkerView, ...]:
    """Those whose URL is not in `tried`."""
    return tuple(worker for worker in workers if worker.url not in tried)


def targeted(snapshot: Snapshot, candidates: Sequence[WorkerView], target: str) -> tuple[WorkerView, ...]:
    """The one worker that a client asked for: by name, URL, or position among all workers. Raises RouteFault.

    It must be in service and have the model of `candidates`; a rest or an open breaker does not matter.
    """
    workers = snapshot.workers
    position = int(target) if target.isdecimal() and len(target) < 9 else len(workers)
    url = workers[position].url if position < len(workers) else target
    meant = [worker for worker in workers if worker.url == url or worker.name == target]
    model = candidates[0].model
    found = tuple(worker for worker in meant if worker.status is WorkerStatus.READY and worker.model == model)
    if not found:
        raise RouteFault(503, f"The worker {target!r} that was asked for is not ready.", code="target_not_ready")
    return found


def candidates_for(snapshot: Snapshot, model: str | None) -> tuple[WorkerView, ...]:
    """The ready workers of a model; with None, and with SGLang's "default", of the only model there is. Raises
    RouteFault."""
    if model == "default" and model not in snapshot.models:
        model = None
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
