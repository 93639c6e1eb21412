"""What the console's page is told, and what the gateway's processes tell each other for it."""

from __future__ import annotations

import msgspec


class Decision(msgspec.Struct, frozen=True, tag_field="kind", tag="choice"):
    """Routing chose a worker. `key` names it among all; `prompt`, `cached`: tokens as routing expects them, 0 if it has
    no notion; `wait_ms`: to the first token, likewise; `attempt`: from 1; `at`: Unix time in seconds."""

    key: str
    at: float
    request: str
    model: str
    worker: str
    reason: str
    prompt: int
    cached: int
    wait_ms: float
    stream: bool
    attempt: int


class FirstToken(msgspec.Struct, frozen=True, tag_field="kind", tag="first"):
    """The stream of the attempt that `key` names has begun."""

    key: str
    ttft_ms: float


class Outcome(msgspec.Struct, frozen=True, tag_field="kind", tag="end"):
    """How the attempt ended that `key` names: a status, 0 if another attempt followed. `ttft_ms`: of a stream."""

    key: str
    status: int
    ms: float
    ttft_ms: float | None = None


Event = Decision | FirstToken | Outcome


class Totals(msgspec.Struct, frozen=True):
    """Counters of one process since its start."""

    requests: int = 0
    errors: int = 0  # statuses from 500
    prompt_tokens: int = 0
    cached_tokens: int = 0
    choices: dict[str, int] = {}  # by reason


class Slice(msgspec.Struct, frozen=True):
    """What one process has seen since it was last asked. `upto`: what to ask for next time. `in_flight`: by worker's
    URL; `queued`: requests that no worker has yet."""

    upto: int
    events: list[Event]
    ttfts_s: list[float]
    in_flight: dict[str, int]
    queued: int
    totals: Totals


class Row(msgspec.Struct, frozen=True):
    """One worker. None: it does not tell. `breaker`: closed, open or half_open."""

    url: str
    name: str
    model: str
    state: str
    note: str
    breaker: str
    resting: bool
    in_flight: int
    running: int | None
    waiting: int | None
    usage: float | None
    pool_tokens: int | None
    hit_rate: float | None
    tokens_per_s: float | None


class Point(msgspec.Struct, frozen=True):
    """The whole fleet at one moment; rates are over the second before, TTFT and hit rate over the last ten."""

    at: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tokens_per_s: float | None
    requests_per_s: float
    errors_per_s: float
    in_flight: int
    queued: int
    hit_rate: float | None
    reasons: dict[str, int]
