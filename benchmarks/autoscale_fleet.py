"""A fleet in virtual time: replicas take their time to start and drain before they go; an autoscaler counts them.

Routing is the gateway's own (Router, Registry, the policy by name); the autoscaler is that of deploy/autoscale, asked
when replicas report.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from benchmarks.autoscale_replica import Job, LightReplica, Machine
from benchmarks.traces import TraceRequest
from deploy.fleet.scaling import Autoscaler, ReplicaView
from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.factory import make_policy
from gateway.routing.policy import RouteRequest
from gateway.routing.router import Router
from worker.engine.sim.timeline import Timeline

_MODEL = "m"
_TICK_S = 2.0  # how often replicas report
_BYTES_PER_TOKEN = 4


@dataclass(slots=True, eq=False)
class _Member:
    replica: LightReplica
    url: str
    born_s: float
    ready_s: float
    is_ready: bool = False
    is_draining: bool = False


@dataclass(slots=True)
class Outcome:
    """What a run showed. `sizes`: (since when, replicas that are paid for, replicas that serve)."""

    name: str
    ttft_s: list[float] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)  # of the same requests
    failed: int = 0
    sizes: list[tuple[float, int, int]] = field(default_factory=list)
    end_s: float = 0.0

    def attainment(self, target_s: float) -> float:
        """Share of requests whose first token came within `target_s`; the failed count as late."""
        good = sum(1 for ttft_s in self.ttft_s if ttft_s <= target_s)
        return good / (len(self.ttft_s) + self.failed)

    def quantile_s(self, share: float) -> float:
        """Of the times to first token."""
        ordered = sorted(self.ttft_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    @property
    def replica_hours(self) -> float:
        """Paid for: from the launch of each replica to its end."""
        last = [*self.sizes, (self.end_s, 0, 0)]
        return sum((after[0] - before[0]) * before[1] for before, after in pairwise(last)) / 3600

    @property
    def most(self) -> int:
        """Replicas at the same time."""
        return max(paid for _, paid, _ in self.sizes)

    @property
    def changes(self) -> int:
        """Replicas launched or let go after the start."""
        return sum(abs(b[1] - a[1]) for a, b in pairwise(self.sizes))


class VirtualFleet:
    """Runs requests through a fleet. Without an autoscaler its size stays `replicas`."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        *,
        replicas: int,
        start_s: float,
        autoscaler: Autoscaler | None = None,
        policy: str = "cache_aware",
    ) -> None:
        self._timeline = Timeline()
        self._clock = self._timeline.clock
        self._machine = machine
        self._start_s = start_s
        self._autoscaler = autoscaler
        self._wanted = replicas
        self._registry = Registry()
        self._policy = make_policy(GatewaySettings(policy=policy), self._clock, random.Random(1))[0]
        self._router = Router(self._registry, self._policy)
        self._members: dict[str, _Member] = {}
        self._born = 0
        self.outcome = Outcome(name)
        for _ in range(replicas):
            self._ready(self._launch(0.0))
        del self.outcome.sizes[:-1]

    def run(self, requests: Sequence[TraceRequest], end_s: float) -> Outcome:
        """Until all answers have ended; the bill ends at `end_s`, or when the last answer does."""
        if self._autoscaler is not None:
            self._timeline.at(_TICK_S, partial(self._tick, end_s))
        for request in requests:
            self._timeline.run(request.arrival_s)
            self._arrive(request)
        self._timeline.run()
        self.outcome.end_s = max(end_s, self._clock.now_s())
        return self.outcome

    def _arrive(self, request: TraceRequest) -> None:
        now_s = self._clock.now_s()
        size = request.prompt_tokens * _BYTES_PER_TOKEN
        choice = self._router.route(RouteRequest(model=_MODEL, prompt_bytes=size, stream=True))
        member = self._members[choice.worker.url]
        ticket = choice.worker.load.begin(choice.uncached_tokens, None)

        def on_first(then_s: float) -> None:
            ticket.prefilled()
            self._policy.started(choice, then_s - now_s)
            self.outcome.ttft_s.append(then_s - now_s)
            self.outcome.arrivals_s.append(now_s)

        def on_end(then_s: float) -> None:
            ticket.end()
            self._policy.served(choice, request.prompt_tokens, 0, request.output_tokens)

        job = Job(now_s, request.prompt_tokens, request.output_tokens, on_first, on_end)
        due_s = member.replica.due_s
        member.replica.submit(job, now_s)
        if member.replica.due_s != due_s:
            self._follow(member)

    def _follow(self, member: _Member) -> None:
        """Advance a replica when its step is due; a step that was cut short has a later entry of its own."""
        due_s = member.replica.due_s
        if due_s is None:
            if member.is_draining:
                self._leave(member)
            return

        def advance() -> None:
            if member.replica.due_s == due_s:
                member.replica.advance()
                self._follow(member)

        self._timeline.at(due_s, advance)

    def _tick(self, end_s: float) -> None:
        now_s = self._clock.now_s()
        assert self._autoscaler is not None
        self._wanted = self._autoscaler.desired(self._views(), self._wanted, now_s)
        staying = [member for member in self._members.values() if not member.is_draining]
        for _ in range(self._wanted - len(staying)):
            member = self._launch(now_s)
            self._timeline.at(member.ready_s, partial(self._ready, member))
        for _ in range(len(staying) - self._wanted):
            self._drain(self._autoscaler.victim([v for v in self._views() if v.state != "draining"]))
        if now_s + _TICK_S <= end_s:
            self._timeline.at(now_s + _TICK_S, partial(self._tick, end_s))

    def _views(self) -> list[ReplicaView]:
        return [
            ReplicaView(
                replica_id=member.url,
                incarnation=member.replica.incarnation,
                state="draining" if member.is_draining else "ready" if member.is_ready else "starting",
                state_for_s=self._clock.now_s() - member.born_s,
                url=member.url,
                load=member.replica.load() if member.is_ready else None,
            )
            for member in self._members.values()
        ]

    def _launch(self, now_s: float) -> _Member:
        self._born += 1
        url = f"http://replica-{self._born}:80"
        member = _Member(LightReplica(self._machine, f"life-{self._born}"), url, now_s, now_s + self._start_s)
        self._members[url] = member
        self._note()
        return member

    def _ready(self, member: _Member) -> None:
        if member.url not in self._members:
            return  # let go while it started
        member.is_ready = True
        identity = Identity(model=_MODEL, max_running_requests=self._machine.max_running)
        self._registry.add(member.url, source="test", identity=identity)
        self._registry.ready(member.url)
        self._note()

    def _drain(self, url: str) -> None:
        member = self._members[url]
        member.is_draining = True
        if not member.is_ready or member.replica.due_s is None:
            self._leave(member)
        else:
            self._registry.drain(url)
            self._note()

    def _leave(self, member: _Member) -> None:
        del self._members[member.url]
        self._registry.remove(member.url)
        self._note()

    def _note(self) -> None:
        ready = sum(member.is_ready and not member.is_draining for member in self._members.values())
        self.outcome.sizes.append((self._clock.now_s(), len(self._members), ready))
