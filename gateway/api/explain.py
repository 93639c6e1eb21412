"""POST /route/explain: what routing would do with a request, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gateway.api.answers import fault
from gateway.api.bodies import body_of
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerStatus, WorkerView
from gateway.kv_events.preparer import Preparer
from gateway.routing.extract import BodyFault, extract
from gateway.routing.keys import routing_headers
from gateway.routing.policy import Offer, RouteRequest
from gateway.routing.router import RouteFault, Router


def explain_routes(
    registry: Registry,
    router: Router,
    policy_name: str,
    aliases: Mapping[str, str],
    *,
    max_body_bytes: int,
    preparer: Preparer | None = None,
) -> APIRouter:
    """A dry run: takes the body and headers of a generation request, sends nothing to a worker, learns nothing."""
    routes = APIRouter()

    @routes.post("/route/explain")
    async def explain(request: Request) -> Response:
        headers = request.headers.raw
        body = await body_of(request, max_body_bytes)
        try:
            asked = extract(body, *routing_headers(headers))
            asked = msgspec.structs.replace(asked, model=aliases.get(asked.model or "", asked.model))
            if preparer is not None:
                asked = await preparer.with_tokens(body, asked)
            offers = router.explain(asked)
        except BodyFault as error:
            return fault(400, str(error))
        except RouteFault as error:
            return fault(error.status, error.message, param=error.param, code=error.code)
        offered = {offer.worker.url for offer in offers}
        others = [worker for worker in registry.snapshot.workers if worker.url not in offered]
        outsiders = [outsider(worker, offers[0].worker.model) for worker in others]
        return JSONResponse(explanation(policy_name, asked, offers) | {"not_considered": outsiders})

    return routes


def explanation(policy_name: str, asked: RouteRequest, offers: list[Offer]) -> dict[str, Any]:
    """The answer's part about the candidates, best first. Prices in seconds, None if the policy has none."""
    candidates = list(map(candidate, offers))
    return {
        "policy": policy_name,
        "model": asked.model,
        "prompt": {
            "bytes": asked.prompt_bytes,
            "tokens": (asked.tokens.count if asked.tokens is not None else 0) or asked.prompt_tokens or None,
            "matchable_bytes": len(asked.text),
            "routing_key": asked.key.decode("latin-1") or None,
        },
        "chosen": candidates[0],
        "runner_up": candidates[1] if len(candidates) > 1 else None,
        "candidates": candidates,
    }


def candidate(offer: Offer) -> dict[str, Any]:
    """One candidate."""
    load = offer.worker.load
    return {
        "worker": offer.worker.name,
        "url": offer.worker.url,
        "reason": offer.reason,
        "predicted_cached_tokens": offer.cached_tokens,
        "price_s": offer.price_s,
        "price_parts_s": offer.parts,
        "load": {
            "requests": load.requests,
            "in_flight": load.inflight,
            "waiting_prefill_tokens": load.pending_tokens + load.others_tokens,
        },
    }


def outsider(worker: WorkerView, model: str) -> dict[str, Any]:
    """A worker that was no candidate, or was not priced because there are so many."""
    status = worker.status.value
    if worker.status is not WorkerStatus.READY:
        why = worker.message or status
    elif worker.model != model:
        why = "it serves another model"
    else:
        why = "not among those drawn, or set aside by its breaker, a rest, or the target that was asked for"
    return {"worker": worker.name, "url": worker.url, "model": worker.model, "status": status, "why": why}
