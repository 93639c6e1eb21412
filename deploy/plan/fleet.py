"""A fleet in virtual time: the real router in front of real schedulers on simulated devices. No sockets, no sleeping.

What a gateway and its replicas would do is done in the order of the virtual clock: requests are routed by what the
gateway knows then, replicas take their turns, and the gateway hears of first tokens and ends when they happen. Left out
is what the network, the frontend and the gateway themselves take for a request: some milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count

from deploy.plan.replica import VirtualReplica
from deploy.plan.workload import Ask
from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity, Ticket
from gateway.routing.extract import MAX_TEXT_BYTES
from gateway.routing.factory import make_policy
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.router import Router
from worker.config import WorkerSettings
from worker.engine.sim.profile import SimProfile
from worker.engine.sim.timeline import Timeline
from worker.ipc.messages import GenerateRequest, TokenDelta
from worker.models.config import ModelConfig
from worker.sampling_params import SamplingParams

_MODEL = "m"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """What every replica is, and the gateway in front of them."""

    worker: WorkerSettings
    gateway: GatewaySettings
    config: ModelConfig
    profile: SimProfile


@dataclass(slots=True)
class Served:
    """One request and what its client saw. Times in seconds; 0 until they are known."""

    ask: Ask
    ttft_s: float = 0.0
    latency_s: float = 0.0
    cached_tokens: int = 0
    fault: str = ""  # why it was refused

    @property
    def tpot_s(self) -> float:
        """Mean time between two tokens; 0 for a single one."""
        return (self.latency_s - self.ttft_s) / max(self.ask.output_tokens - 1, 1)


@dataclass(slots=True)
class _Live:
    served: Served
    choice: Choice
    ticket: Ticket


class VirtualFleet:
    """Runs requests through `replicas` replicas. May run several loads after each other, each later than the one
    before: caches and what the router has learned stay."""

    def __init__(self, spec: FleetSpec, replicas: int, *, together: bool = True, seed: int = 1) -> None:
        self._timeline = Timeline()
        self._registry = Registry()
        self._policy = make_policy(spec.gateway, self._timeline.clock, random.Random(seed))[0]
        self._router = Router(self._registry, self._policy)
        self._numbers = count()
        self._live: dict[str, _Live] = {}
        self.replicas: dict[str, VirtualReplica] = {}
        for index in range(replicas):
            self._add(spec, f"http://replica-{index}:80", together=together)

    def _add(self, spec: FleetSpec, url: str, *, together: bool) -> None:
        replica = VirtualReplica(spec.worker, spec.config, spec.profile, self._later, together=together)
        ready = replica.scheduler.ready_message()
        identity = Identity(
            model=_MODEL,
            max_total_tokens=ready.max_total_num_tokens,
            max_running_requests=ready.max_running_requests,
        )
        self.replicas[url] = replica
        self._registry.add(url, source="plan", identity=identity)
        self._registry.ready(url)

    def run(self, asks: Iterable[Ask]) -> list[Served]:
        """In order of arrival, until every answer has ended."""
        everyone = []
        for ask in asks:
            self._timeline.run(ask.arrival_s, included=False)
            everyone.append(self._arrive(ask))
        self._timeline.run()
        return everyone

    def _arrive(self, ask: Ask) -> Served:
        key = ask.prompt_key()
        route = RouteRequest(
            model=_MODEL,
            text=key[:MAX_TEXT_BYTES],
            prompt_bytes=len(key),
            prompt_tokens=ask.prompt_tokens,
            stream=True,
        )
        choice = self._router.route(route)
        served, rid = Served(ask), str(next(self._numbers))
        self._live[rid] = _Live(served, choice, choice.worker.load.begin(choice.uncached_tokens, None))
        replica = self.replicas[choice.worker.url]
        woken_s = replica.wakes_s
        sampling = SamplingParams(max_new_tokens=ask.output_tokens, temperature=0.0, ignore_eos=True)
        replica.submit(GenerateRequest(rid=rid, packed_ids=key, sampling=sampling), ask.arrival_s)
        if replica.wakes_s != woken_s:
            self._follow(replica)
        return served

    def _follow(self, replica: VirtualReplica) -> None:
        """Give the replica its next turn in time. A turn that a request brought forward has a later entry too, which
        finds the replica elsewhere."""
        wakes_s = replica.wakes_s
        if wakes_s is not None:
            self._timeline.at(wakes_s, partial(self._turn, replica, wakes_s))

    def _turn(self, replica: VirtualReplica, wakes_s: float) -> None:
        if replica.wakes_s == wakes_s:
            replica.turn()
            self._follow(replica)

    def _later(self, news: TokenDelta, at_s: float) -> None:
        self._timeline.at(at_s, partial(self._hear, news, at_s))

    def _hear(self, news: TokenDelta, now_s: float) -> None:
        live = self._live[news.rid]
        served, since_s = live.served, now_s - live.served.ask.arrival_s
        if not served.ttft_s and news.token_ids:
            served.ttft_s, served.cached_tokens = since_s, news.cached_tokens
            live.ticket.prefilled()
            self._policy.started(live.choice, since_s)
        if news.finish is None:
            return
        del self._live[news.rid]
        live.ticket.end()
        served.latency_s = since_s
        if news.finish.kind == "abort":
            served.fault = news.finish.message or "aborted"
            self._policy.failed(live.choice)
        else:
            self._policy.served(live.choice, news.prompt_tokens, news.cached_tokens, news.completion_tokens)
