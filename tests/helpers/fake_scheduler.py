"""A scheduler without an engine: speaks the messages, answers with scripted tokens, one step at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from worker.ipc.messages import (
    AbortAll,
    AbortRequest,
    CallReply,
    ContinueGeneration,
    FinishReason,
    FlushCache,
    FrontendMessage,
    GenerateRequest,
    GetHotPrefixes,
    GetLoad,
    HotPrefix,
    HotPrefixes,
    LoadReport,
    PauseGeneration,
    RequestTimes,
    SchedulerCall,
    SchedulerMessage,
    SchedulerReady,
    StartProfile,
    StepOutput,
    StopMatched,
    StopProfile,
    TokenDelta,
    TokenScore,
    UpdateWeights,
    WeightsUpdated,
)
from worker.sampling_params import LogprobsAsked
from worker.token_ids import pack_tokens

Script = Callable[[GenerateRequest], Sequence[int]]


def ready_message(**changes: object) -> SchedulerReady:
    """A small CPU replica."""
    ready = SchedulerReady(
        vocab_size=301,
        context_len=512,
        max_total_num_tokens=300,
        max_req_input_len=290,
        max_running_requests=8,
        page_size=1,
        eos_token_ids=[2],
        device="cpu",
        dtype="float32",
        weight_bytes=1000,
        kv_pool_bytes=2000,
        architectures=["LlamaForCausalLM"],
    )
    return msgspec.structs.replace(ready, **changes)


def score_of(token: int, asked: LogprobsAsked) -> TokenScore:
    """Log-probabilities that tell tokens apart: of the token its own, of the best ones those of ids 0, 1, ..."""
    top = [(id_, -0.5 - id_) for id_ in range(asked.top)]
    return TokenScore(-token / 8, top, [-id_ / 8 for id_ in asked.token_ids])


def _prompt_scores(live: Live) -> list[TokenScore]:
    asked = live.request.sampling.logprobs
    if asked is None or asked.prompt_from is None:
        return []
    return [
        score_of(token, asked)
        for token in np.frombuffer(live.request.prompt_key, np.int32).tolist()[asked.prompt_from :]
    ]


@dataclass
class Live:
    """A request under way."""

    request: GenerateRequest
    tokens: Sequence[int]
    sent: int = 0
    arrived_s: float = field(default_factory=time.monotonic)
    first_token_s: float = 0.0

    def times(self) -> RequestTimes:
        """Admitted a millisecond after it came, as far as anyone can tell."""
        now_s = time.monotonic()
        self.first_token_s = self.first_token_s or now_s + 0.001
        return RequestTimes(self.arrived_s, self.arrived_s + 0.001, self.first_token_s, max(now_s, self.first_token_s))


@dataclass
class FakeScheduler:
    """`send` takes the frontend's messages; news go to `deliver`. `script` names a request's tokens; the answer ends
    after them, with "stop" if the last one is an EOS id."""

    script: Script
    deliver: Callable[[SchedulerMessage], None] = lambda message: None
    eos_id: int = 2
    max_waiting: int | None = None
    paused: bool = False  # nothing is generated while it is set
    vector_of: Callable[[GenerateRequest], bytes] | None = None  # an embedding model's answers
    weight_faults: dict[str, str] = field(default_factory=dict)  # by path: why there are no weights
    received: list[FrontendMessage] = field(default_factory=list)
    live: dict[str, Live] = field(default_factory=dict)

    def send(self, message: FrontendMessage) -> None:
        """Take a message, over the wire format."""
        message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FrontendMessage)
        self.received.append(message)
        match message:
            case GenerateRequest(rid=rid):
                if self.max_waiting is not None and len(self.live) >= self.max_waiting:
                    self._emit_soon(self._end(rid, 503, "The request queue is full."))
                else:
                    self.live[rid] = Live(message, self.script(message))
            case AbortRequest(rid=rid):
                if self.live.pop(rid, None) is not None:
                    self._emit_soon(self._end(rid, 200, "The request was aborted."))
            case AbortAll():
                self.live.clear()
            case StopMatched(rid=rid):
                self.live.pop(rid, None)
            case UpdateWeights():
                self._emit_soon(self._update(message))
            case StartProfile() | StopProfile():
                self._emit_soon(CallReply(call_id=message.call_id, ok=True, message="/profiles/one.trace.json.gz"))
            case GetLoad() | FlushCache() | GetHotPrefixes() | PauseGeneration() | ContinueGeneration():
                self._emit_soon(self._answer(message))

    def _answer(self, call: SchedulerCall) -> SchedulerMessage:
        match call:
            case GetLoad(call_id=call_id):
                return self.load(call_id)
            case PauseGeneration(call_id=call_id) | ContinueGeneration(call_id=call_id):
                self.paused = isinstance(call, PauseGeneration)
                return CallReply(call_id=call_id, ok=True)
            case GetHotPrefixes(call_id=call_id):
                return HotPrefixes(call_id=call_id, prefixes=[HotPrefix(tokens=pack_tokens([5, 6, 7]), hits=2)])
            case FlushCache(call_id=call_id):
                return CallReply(call_id=call_id, ok=not self.live, message="busy" if self.live else "")

    def _update(self, call: UpdateWeights) -> SchedulerMessage:
        """At once, whatever is live."""
        fault = self.weight_faults.get(call.model_path)
        if fault is not None:
            return CallReply(call_id=call.call_id, ok=False, message=fault, param="model_path")
        return WeightsUpdated(
            call_id=call.call_id, model_path=call.model_path, weight_version=call.weight_version, num_held_back=3
        )

    def step(self) -> None:
        """One token for each live request."""
        deltas = [self._next(live) for live in list(self.live.values())]
        if deltas:
            self._emit(StepOutput(deltas=deltas))

    def fail_all(self, status: int, message: str) -> None:
        """End every request in the middle of its answer."""
        rids = list(self.live)
        self.live.clear()
        for rid in rids:
            self._emit(self._end(rid, status, message))

    async def run(self) -> None:
        """Step without end, one token for each turn of the event loop."""
        while True:
            if not self.paused:
                self.step()
            await asyncio.sleep(0 if self.live and not self.paused else 0.001)

    def of_kind(self, kind: type) -> list[FrontendMessage]:
        """The messages of one kind that have come."""
        return [message for message in self.received if isinstance(message, kind)]

    @property
    def requests(self) -> list[GenerateRequest]:
        """The sequences that were to be generated."""
        return [message for message in self.received if isinstance(message, GenerateRequest)]

    def load(self, call_id: int) -> LoadReport:
        """Numbers that tell the fields apart."""
        numbers = (name for name in LoadReport.__struct_fields__ if name != "scheduler")
        values = {name: index for index, name in enumerate(numbers, 100)}
        values |= {"call_id": call_id, "num_running_reqs": len(self.live), "num_waiting_reqs": 0}
        return msgspec.convert(values, LoadReport)

    def _next(self, live: Live) -> TokenDelta:
        if live.request.sampling.max_new_tokens == 0:
            del self.live[live.request.rid]
            return TokenDelta(
                rid=live.request.rid,
                token_ids=[],
                prompt_scores=_prompt_scores(live),
                prompt_tokens=live.request.prompt_len,
                cached_tokens=1,
                completion_tokens=0,
                finish=FinishReason(kind="length" if self.vector_of is None else "stop"),
                vector=b"" if self.vector_of is None else self.vector_of(live.request),
            )
        token = live.tokens[live.sent]
        live.sent += 1
        finish = None
        if live.sent == len(live.tokens) or live.sent == live.request.sampling.max_new_tokens:
            del self.live[live.request.rid]
            stopped = token == self.eos_id and not live.request.sampling.ignore_eos
            finish = FinishReason(kind="stop", matched=token) if stopped else FinishReason(kind="length")
        asked = live.request.sampling.logprobs
        return TokenDelta(
            scores=[] if asked is None else [score_of(token, asked)],
            prompt_scores=_prompt_scores(live) if live.sent == 1 else [],
            rid=live.request.rid,
            token_ids=[token],
            prompt_tokens=live.request.prompt_len,
            cached_tokens=1,
            completion_tokens=live.sent,
            finish=finish,
            times=live.times() if live.request.traced else None,
        )

    def _end(self, rid: str, status: int, message: str) -> StepOutput:
        reason = FinishReason(kind="abort", status=status, message=message)
        delta = TokenDelta(rid=rid, token_ids=[], prompt_tokens=0, cached_tokens=0, completion_tokens=0, finish=reason)
        return StepOutput(deltas=[delta])

    def _emit_soon(self, message: SchedulerMessage) -> None:
        asyncio.get_running_loop().call_soon(self._emit, message)

    def _emit(self, message: SchedulerMessage) -> None:
        self.deliver(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=SchedulerMessage))
