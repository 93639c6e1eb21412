"""What one replica's routes work with: its settings, its state and, once the model is loaded, the parts around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from common.chat_templates import uses_variable
from common.clock import Clock
from common.kv_events import KvEventsConfig
from common.tracing.spans import SpanSink
from worker.config import WorkerSettings
from worker.ipc.messages import CallAnswer, FrontendMessage, SchedulerReady, StepOutput, WeightsUpdated
from worker.server.errors import RequestFault
from worker.server.lifecycle import SHUTTING_DOWN, Lifecycle, ReplicaState
from worker.server.limits import PromptLimits, takes_priority
from worker.server.metrics import Buckets, RequestMetrics
from worker.server.parsers.choose import Families, families
from worker.server.request_log import request_log
from worker.server.sampling import SamplingDefaults, SamplingRules
from worker.server.scheduler_client import SchedulerClient
from worker.server.scheduler_metrics import Facts, SchedulerMetrics
from worker.server.served_weights import ServedWeights
from worker.server.sglang_metrics import SglangMetrics
from worker.server.streams import Streams
from worker.server.tokenizer import AsyncTokenizer, NoTokenizer, TextCodec, Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the frontend needs from a model's directory."""

    tokenizer: TextCodec
    sampling_defaults: SamplingDefaults

    @classmethod
    def load(cls, path: str, settings: WorkerSettings) -> ModelFiles:
        """Read those of directory `path`; takes seconds. Raises UserError."""
        from_model = settings.sampling_defaults == "model"
        defaults = SamplingDefaults.load(Path(path)) if from_model else SamplingDefaults()
        if settings.skip_tokenizer_init:
            return cls(NoTokenizer(), defaults)
        tokenizer = Tokenizer.load(
            settings.tokenizer_path or path,
            chat_template=settings.chat_template,
            template_name=settings.hf_chat_template_name,
            variables=settings.default_chat_template_kwargs,
        )
        return cls(tokenizer, defaults)


@dataclass(frozen=True, slots=True)
class Serving:
    """What exists only once the model is loaded."""

    ready: SchedulerReady
    tokenizer: AsyncTokenizer
    rules: SamplingRules
    limits: PromptLimits
    streams: Streams
    families: Families  # how the model writes calls and reasoning
    takes_tools: bool  # its chat template shows tools to it


class Service:
    """One replica's frontend, seen by its routes. `open` makes it ready; `receive` takes the scheduler's messages."""

    def __init__(
        self,
        settings: WorkerSettings,
        incarnation: str,
        registry: CollectorRegistry,
        clock: Clock,
        send: Callable[[FrontendMessage], None],
        traces: SpanSink | None = None,
    ) -> None:
        self.settings = settings
        self.traces = traces
        self.incarnation = incarnation
        self.created = int(time.time())
        self.kv_events: KvEventsConfig | None = None  # where the streams are, while there are some
        self.tokenizer_dir = ""  # empty: none is loaded
        self.weights = ServedWeights(settings.model_path, settings.weight_version)
        self.registry = registry
        self.lifecycle = Lifecycle()
        self.scheduler = SchedulerClient(send)
        self._clock = clock
        self._started_s = clock.now_s()
        facts = Facts(settings.model_name, version("canopy-serve"), incarnation, time.time())
        self.scheduler_metrics = SchedulerMetrics(facts)
        registry.register(self.scheduler_metrics)
        self._metrics = RequestMetrics(registry, settings.model_name, Buckets.of(settings))
        if settings.metrics_compat == "sglang":
            registry.register(SglangMetrics(self._metrics, self.scheduler_metrics))
        ProcessCollector(registry=registry)
        self._send = send
        self._serving: Serving | None = None

    @property
    def serving(self) -> Serving:
        """The loaded model's parts. Raises RequestFault (503) while it loads."""
        if self._serving is None:
            self.lifecycle.check_admits()
        assert self._serving is not None
        return self._serving

    def admit(self) -> Serving:
        """The loaded model's parts, for a new request. Raises RequestFault (503) if none is taken now."""
        self.lifecycle.check_admits()
        return self.serving

    def open(self, ready: SchedulerReady, files: ModelFiles) -> None:
        """The scheduler and the tokenizer are there: take requests from now on."""
        tokenizer = AsyncTokenizer(files.tokenizer)
        limits = PromptLimits(ready, self.settings.allow_auto_truncate, takes_priority(self.settings))
        rules = SamplingRules.of(self.settings, files.sampling_defaults, ready)
        log = request_log(self.settings, files.tokenizer)
        interval = self.settings.stream_interval
        streams = Streams(self._send, files.tokenizer, self._metrics, log, self._clock, interval, self.weights)
        template = files.tokenizer.chat_template
        ways = families(self.settings.tool_call_parser, self.settings.reasoning_parser, template, ready.architectures)
        takes_tools = uses_variable(template or "", "tools")
        self._serving = Serving(ready, tokenizer, rules, limits, streams, ways, takes_tools)
        self.scheduler_metrics.ready = ready
        self.scheduler_metrics.ready_after_s = self._clock.now_s() - self._started_s
        self.lifecycle.move_to(ReplicaState.READY)

    def receive(self, message: StepOutput | CallAnswer) -> None:
        """Take news or an answer from the scheduler."""
        if isinstance(message, StepOutput):
            if self._serving is not None:
                self._serving.streams.deliver(message)
            return
        if isinstance(message, WeightsUpdated):
            self.weights.update(message)
        self.scheduler.receive(message)

    @property
    def num_live(self) -> int:
        """Sequences that have not ended."""
        return self._serving.streams.num_live if self._serving is not None else 0

    async def wait_idle(self) -> None:
        """Wait until no sequence is live."""
        if self._serving is not None:
            await self._serving.streams.wait_idle()

    def end(self, failure: str | None) -> None:
        """Take nothing more and end every request with an error: `failure`, or that the server shuts down."""
        if failure is not None:
            self.lifecycle.move_to(ReplicaState.FAILED)
        message = failure or SHUTTING_DOWN
        self.scheduler.end(message)
        if self._serving is not None:
            self._serving.streams.abort_all(503, message)

    def close(self) -> None:
        """End the tokenizer's threads."""
        if self._serving is not None:
            self._serving.tokenizer.close()

    def ttft(self) -> dict[str, list[float]]:
        """Times to first token since the start, as counts by upper bound."""
        return self._metrics.ttft()

    def now_s(self) -> float:
        """The clock that answers are timed by."""
        return self._clock.now_s()

    def check_generates(self) -> None:
        """Raise RequestFault (400) if the model makes embeddings only."""
        if self.serving.ready.embedding_size:
            text = f"The model {self.settings.model_name!r} makes embeddings and no text; send it to /v1/embeddings."
            raise RequestFault(400, text, param="model")

    def check_embeds(self) -> None:
        """Raise RequestFault (400) if the model generates text."""
        if not self.serving.ready.embedding_size:
            text = f"The model {self.settings.model_name!r} generates text and makes no embeddings; ask another one."
            raise RequestFault(400, text, param="model")

    def check_model(self, name: str | None) -> None:
        """Raise RequestFault (404) unless `name` means this model. Nothing, or "default", does."""
        if name not in (None, "default", self.settings.model_name, self.settings.model_path):
            text = f"The model {name!r} does not exist here; this server has {self.settings.model_name!r}."
            raise RequestFault(404, text, param="model", code="model_not_found")
