"""What the routes of one replica work with: its settings, its state, and, once the model is loaded, the parts around it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from common.clock import Clock
from worker.config import WorkerSettings
from worker.ipc.messages import (
    CallReply,
    FrontendMessage,
    GenerateRequest,
    LoadReport,
    SchedulerReady,
    StepOutput,
)
from worker.sampling_params import SamplingParams
from worker.server.errors import RequestFault
from worker.server.lifecycle import Lifecycle, ReplicaState
from worker.server.limits import PromptLimits
from worker.server.metrics import LoadCollector, RequestMetrics
from worker.server.sampling import SamplingDefaults, SamplingRules
from worker.server.scheduler_client import SchedulerClient
from worker.server.schemas import Prompts
from worker.server.streams import Generation, Streams
from worker.server.tokenizer import AsyncTokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The tokenizer side of a model, as files say it."""

    tokenizer: Tokenizer
    sampling_defaults: SamplingDefaults


@dataclass(frozen=True, slots=True)
class Engine:
    """What exists only once the model is loaded."""

    ready: SchedulerReady
    tokenizer: AsyncTokenizer
    rules: SamplingRules
    limits: PromptLimits
    streams: Streams


class Service:
    """One replica's frontend, seen by its routes. `open` makes it ready; `receive` takes the scheduler's messages."""

    def __init__(
        self,
        settings: WorkerSettings,
        incarnation: str,
        registry: CollectorRegistry,
        clock: Clock,
        send: Callable[[FrontendMessage], None],
    ) -> None:
        self.settings = settings
        self.incarnation = incarnation
        self.registry = registry
        self.lifecycle = Lifecycle()
        self.scheduler = SchedulerClient(send)
        self.load_metrics = LoadCollector(settings.model_name)
        registry.register(self.load_metrics)
        self._metrics = RequestMetrics(registry, settings.model_name)
        self._clock = clock
        self._send = send
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The loaded model's parts. Raises RequestFault (503) while it loads."""
        if self._engine is None:
            self.lifecycle.check_admits()
        assert self._engine is not None
        return self._engine

    def admit(self) -> Engine:
        """The loaded model's parts, for a new request. Raises RequestFault (503) if none is taken now."""
        self.lifecycle.check_admits()
        return self.engine

    def open(self, ready: SchedulerReady, model: LoadedModel) -> None:
        """The scheduler and the tokenizer are there: take requests from now on."""
        tokenizer = AsyncTokenizer(model.tokenizer)
        limits = PromptLimits(ready, self.settings.allow_auto_truncate)
        rules = SamplingRules(model.sampling_defaults, ready)
        interval = self.settings.stream_interval
        streams = Streams(self._send, model.tokenizer, self._metrics, self._clock, interval)
        self._engine = Engine(ready, tokenizer, rules, limits, streams)
        self.lifecycle.move_to(ReplicaState.READY)

    def receive(self, message: StepOutput | LoadReport | CallReply) -> None:
        """Take news or an answer from the scheduler."""
        if isinstance(message, StepOutput):
            if self._engine is not None:
                self._engine.streams.deliver(message)
        else:
            self.scheduler.receive(message)

    def fail(self, message: str) -> None:
        """The scheduler is gone: end every request with an error."""
        self.lifecycle.move_to(ReplicaState.FAILED)
        if self._engine is not None:
            self._engine.streams.abort_all(500, message)

    def close(self) -> None:
        """End the tokenizer's threads."""
        if self._engine is not None:
            self._engine.tokenizer.close()

    def now_s(self) -> float:
        """The clock that answers are timed by."""
        return self._clock.now_s()

    def check_model(self, name: str | None) -> None:
        """Raise RequestFault (404) unless `name` means this model. Nothing, or "default", does."""
        if name not in (None, "default", self.settings.model_name, self.settings.model_path):
            text = f"The model {name!r} does not exist here; this server has {self.settings.model_name!r}."
            raise RequestFault(404, text, param="model", code="model_not_found")


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence to generate: its prompt, its parameters, and the field the prompt came from."""

    input_ids: list[int]
    sampling: SamplingParams
    param: str


async def encode(engine: Engine, prompts: Prompts, param: str) -> list[list[int]]:
    """Prompts as token ids; texts are encoded in a thread."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    tokenizer = engine.tokenizer.tokenizer
    for text in texts:
        engine.limits.check_text(tokenizer.least_tokens(text), param)
    return await engine.tokenizer.run(lambda: [tokenizer.encode(text) for text in texts])


async def encode_chat(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    *,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """A chat as token ids, in a thread."""
    tokenizer = engine.tokenizer.tokenizer
    engine.limits.check_text(tokenizer.least_tokens("".join(str(m["content"]) for m in messages)), "messages")
    work = partial(
        tokenizer.encode_chat, messages, continue_final_message=continue_final_message, variables=variables or {}
    )
    return await engine.tokenizer.run(work)


def start(
    engine: Engine,
    asks: Sequence[Ask],
    *,
    group_id: str,
    rids: Sequence[str] | None = None,
    priority: int | None,
    extra_key: str | None,
    stream: bool,
) -> Generation:
    """Check the prompts and send them to the scheduler. Raises RequestFault, then nothing was sent."""
    if rids is None:
        rids = [group_id] if len(asks) == 1 else [f"{group_id}_{i}" for i in range(len(asks))]
    requests = [
        GenerateRequest(
            rid=rid,
            input_ids=engine.limits.fit(ask.input_ids, ask.sampling, ask.param),
            sampling=ask.sampling,
            priority=priority or 0,
            extra_key=extra_key,
        )
        for rid, ask in zip(rids, asks, strict=True)
    ]
    return engine.streams.start(group_id, requests, stream=stream)


def new_id(prefix: str) -> str:
    """A fresh request id."""
    return prefix + uuid.uuid4().hex
