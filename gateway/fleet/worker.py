"""One worker as the gateway sees it: its states, what it told about itself, and the ledger of what we sent it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from gateway.kv_events.endpoints import Endpoints, TokenizerSource
from gateway.resilience.breaker import BreakerRules
from gateway.resilience.guard import ReplicaGuard

NO_LIFE = 0  # the `life` of a worker whose process is known to be dead
OTHERS_HALF_LIFE_S = 1.0


class WorkerStatus(Enum):
    """Where a worker is in its life. Only READY workers get new requests."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    GONE = "gone"


LEGAL_TRANSITIONS: dict[WorkerStatus, frozenset[WorkerStatus]] = {
    WorkerStatus.STARTING: frozenset(
        {WorkerStatus.READY, WorkerStatus.DEGRADED, WorkerStatus.DRAINING, WorkerStatus.GONE}
    ),
    WorkerStatus.READY: frozenset({WorkerStatus.DEGRADED, WorkerStatus.DRAINING, WorkerStatus.GONE}),
    WorkerStatus.DEGRADED: frozenset({WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.GONE}),
    WorkerStatus.DRAINING: frozenset({WorkerStatus.GONE}),
    WorkerStatus.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker says it is. Empty or zero: it did not say."""

    model: str = ""
    task: str = ""  # generate or embed
    context_tokens: int = 0  # of a prompt and its answer together
    incarnation: str = ""
    max_total_tokens: int = 0  # KV pool
    max_running_requests: int = 0
    page_size: int = 0  # tokens: of a prefix, whole pages are cached
    events: Endpoints | None = None
    tokenizer: TokenizerSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A worker's own numbers, from /v1/loads, summed over its data-parallel ranks."""

    running_requests: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    used_tokens: int = 0
    max_total_tokens: int = 0
    token_usage: float = 0.0
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    generated_tokens: int = 0  # since it started; 0: none, or it does not tell
    received_s: float = 0.0  # our clock
    pushed: bool = False  # without being asked for


class Ours(NamedTuple):
    """What of a worker's load is ours."""

    requests: int
    tokens: int  # of prompts, to be prefilled


def remaining_share(age_s: float) -> float:
    """How much of what others had at a worker still counts so long after the worker reported it: half a second later
    70 %, then half of it each second. A number that nobody renews may be about requests that are long over."""
    return float(0.5 ** (max(age_s, 0.0) / OTHERS_HALF_LIFE_S))


class WorkerLoad:
    """The ledger of one worker: requests in flight and prompt tokens it still has to prefill for us.

    Written by its tickets and by whoever brings the worker's reports; policies read it. It lives as long as the
    worker's registration.
    """

    __slots__ = (
        "_others_told",
        "expiring",
        "inflight",
        "last_progress_s",
        "others_requests",
        "others_tokens",
        "pending_tokens",
        "report",
        "sent_total",
    )

    def __init__(self) -> None:
        self.inflight = 0
        self.pending_tokens = 0
        self.sent_total = 0
        self.last_progress_s = float("-inf")  # when bytes of an answer last came
        self.report: LoadReport | None = None
        self.others_requests = 0  # that the worker reported beyond ours: another gateway's, or sent directly
        self.others_tokens = 0  # the same of prompt tokens waiting there
        self._others_told = Ours(0, 0)  # both, when they were reported
        self.expiring: deque[Ticket] = deque()  # in order of entry; for `expire`

    def begin(self, uncached_tokens: int, release_s: float | None) -> Ticket:
        """Enter a request. `release_s`: when its prefill is surely over although no byte will tell (non-stream)."""
        ticket = Ticket(self, uncached_tokens, release_s)
        self.inflight += 1
        self.sent_total += 1
        self.pending_tokens += uncached_tokens
        if release_s is not None:
            expiring = self.expiring
            while expiring and expiring[0].ended:  # a policy may never ask for `expire`
                expiring.popleft()
            expiring.append(ticket)
        return ticket

    @property
    def ours(self) -> Ours:
        """What we have there now."""
        return Ours(self.inflight, self.pending_tokens)

    def told(self, report: LoadReport, before: Ours | None = None) -> None:
        """The worker's own numbers came. `before`: ours when they may have been made; what ended since is nobody
        else's."""
        then, now = before or self.ours, self.ours
        self.report = report
        requests = report.running_requests + report.waiting_requests - max(then.requests, now.requests)
        tokens = report.waiting_tokens - max(then.tokens, now.tokens)
        self._others_told = Ours(max(requests, 0), max(tokens, 0))
        self.others_requests, self.others_tokens = self._others_told

    def age(self, now_s: float) -> None:
        """Time has passed since the last report: what others had there counts less and less."""
        if self.report is not None and (self.others_requests or self.others_tokens):
            share = remaining_share(now_s - self.report.received_s)
            self.others_requests = round(self._others_told.requests * share)
            self.others_tokens = round(self._others_told.tokens * share)

    @property
    def requests(self) -> int:
        """Requests there, as far as we know."""
        return self.inflight + self.others_requests

    def expire(self, now_s: float) -> None:
        """Let go of prefill work whose estimated time is over. Cheap; call before reading `pending_tokens`."""
        expiring = self.expiring
        while expiring and (expiring[0].ended or (expiring[0].release_s or 0.0) <= now_s):
            expiring.popleft().prefilled()


class Ticket:
    """One request's entry in a ledger. `prefilled` and `end` may be called in any order, any number of times.

    `trial`: its number if the request tries a worker whose breaker is half-open, else 0.
    """

    __slots__ = ("_load", "_tokens", "ended", "release_s", "trial")

    def __init__(self, load: WorkerLoad, tokens: int, release_s: float | None) -> None:
        self._load = load
        self._tokens = tokens
        self.release_s = release_s
        self.ended = False
        self.trial = 0

    def prefilled(self) -> None:
        """The first token is out: nothing of the prompt is waiting any more."""
        self._load.pending_tokens -= self._tokens
        self._tokens = 0

    def end(self) -> None:
        """The request is over, however it ended."""
        if self.ended:
            return
        self.ended = True
        self.prefilled()
        self._load.inflight -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker in one snapshot. `life` changes whenever its cache must be taken for lost.

    `load` and `guard` are live: the ledger as long as the registration, the guard as long as the process.
    """

    url: str
    name: str
    life: int
    status: WorkerStatus
    identity: Identity
    source: str  # who registered it: "static", "ray", "api"
    message: str = ""
    api_key: str | None = field(default=None, repr=False)  # for requests to it; None: the gateway's rule
    model_id: str = ""  # the name clients use, whatever the worker says
    labels: Mapping[str, str] = field(default_factory=dict)  # whoever registered it may say what it likes
    weights: str = ""  # the update that its process took on, of those through this gateway; empty: none of them
    load: WorkerLoad = field(compare=False, repr=False)
    guard: ReplicaGuard = field(compare=False, repr=False, default_factory=lambda: ReplicaGuard(BreakerRules()))

    @property
    def model(self) -> str:
        return self.model_id or self.identity.model

    def moved(self, status: WorkerStatus, message: str = "") -> WorkerView:
        """The same worker in another state. The transition must be legal."""
        if status is not self.status and status not in LEGAL_TRANSITIONS[self.status]:
            raise ValueError(f"worker {self.name}: {self.status.value} -> {status.value} is not a legal transition")
        return replace(self, status=status, message=message)
