"""The engine without a server: `from worker import Engine`. Scheduler and runner work in the caller's thread; text,
validation and answers are made by the very code that the server uses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from pydantic import ValidationError

from common.clock import MonotonicClock
from common.errors import UserError
from common.settings import validated
from worker.assembly import running_scheduler
from worker.config import WorkerSettings
from worker.ipc.messages import (
    AbortAll,
    FlushCache,
    GenerateRequest,
    SchedulerMessage,
    StepOutput,
    StopMatched,
    TokenDelta,
)
from worker.models.paths import cache_root, resolve_model_path
from worker.preflight import check_before_loading
from worker.server.answers import Answer
from worker.server.errors import from_validation
from worker.server.limits import PromptLimits
from worker.server.native_batch import NativeBatch, NativeObjects
from worker.server.prompts import Ask
from worker.server.sampling import SamplingRules
from worker.server.schemas import GenerateBody
from worker.server.service import ModelFiles


class Engine:
    """One replica's engine in this process. Not thread-safe. Use it as a context manager, or call `shutdown`."""

    def __init__(self, model_path: str, **settings: Any) -> None:
        """`settings` are those of `canopy worker`, with underscores. Raises UserError for what the user can mend."""
        chosen = validated(WorkerSettings, {"model_path": model_path, **settings})
        if chosen.kv_events_config is not None:
            raise UserError("kv_events_config: an offline engine's cache is nobody else's business; leave it out.")
        check_before_loading(chosen)
        path = str(resolve_model_path(model_path, cache_root(os.environ), chosen.revision, chosen.download_dir))
        self._files = ModelFiles.load(path, chosen)
        self._stack = ExitStack()
        self._scheduler = self._stack.enter_context(
            running_scheduler(chosen.model_copy(update={"model_path": path, "revision": None}), self._receive)
        )
        self._ready = self._scheduler.ready_message()
        self._rules = SamplingRules.of(chosen, self._files.sampling_defaults, self._ready)
        self._limits = PromptLimits(self._ready, chosen.allow_auto_truncate)
        self._weight_version = chosen.weight_version
        self._clock = MonotonicClock()
        self._rids = itertools.count()
        self._live: dict[str, Answer] = {}
        self._held: dict[str, list[int]] = {}  # tokens of answers without stop strings: they become text at the end
        self._matches: list[StopMatched] = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def generate(
        self,
        prompts: str | list[str] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Answer prompts given as texts or token ids: `{"text", "output_ids", "meta_info"}` each, a list for a list.

        `sampling_params` is one set for all prompts or one for each; `more` are further fields of /generate, such as
        return_logprob. Raises RequestFault (a ValueError) for a request that cannot be served; an answer that the
        engine gave up has finish_reason type "abort".
        """
        fields = {"text": prompts, "input_ids": input_ids, "sampling_params": sampling_params, **more}
        try:
            body = GenerateBody.model_validate(fields)
        except ValidationError as error:
            raise from_validation(error) from None
        batch = NativeBatch.of(body)
        asks, n = batch.asks(body, self._encode(batch, body), self._rules)
        answers = self._run(asks)
        maker = NativeObjects(
            self._weight_version, self._files.tokenizer.token_bytes if body.return_text_in_logprobs else None
        )
        objects = [maker.of(answer, answer.last_s) for answer in answers]
        return objects[0] if batch.single and n == 1 else objects

    def flush_cache(self) -> None:
        """Empty the prefix cache."""
        self._scheduler.handle(FlushCache(call_id=0))

    def shutdown(self) -> None:
        """Free the model. The engine is of no use afterwards."""
        self._stack.close()

    def _encode(self, batch: NativeBatch, body: GenerateBody) -> Sequence[list[int]]:
        encode = self._files.tokenizer.encode
        return [encode(prompt) if isinstance(prompt, str) else prompt for prompt in batch.prompts]

    def _run(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = [self._answer(index, ask) for index, ask in enumerate(asks)]
        self._live = {answer.request.rid: answer for answer in answers}
        try:
            for answer in answers:
                self._scheduler.handle(answer.request)
            while self._live:
                worked = self._scheduler.step()
                assert worked or not self._live, "the scheduler rests although requests are live"
                self._tell_matches()
        except BaseException:  # also Ctrl-C: leave nothing running behind
            self._live.clear()
            self._scheduler.handle(AbortAll())
            raise
        finally:
            self._held.clear()
            while self._scheduler.step():
                pass
        self._scheduler.on_idle()
        return answers

    def _answer(self, index: int, ask: Ask) -> Answer:
        input_ids = self._limits.fit(ask.input_ids, ask.sampling, ask.param, ask.length_param)
        request = GenerateRequest(rid=str(next(self._rids)), input_ids=input_ids, sampling=ask.sampling)
        if not ask.sampling.stop and ask.sampling.logprobs is None:
            self._held[request.rid] = []
        return Answer(request.rid, request, index, self._files.tokenizer.pipeline(ask.sampling), self._clock.now_s())

    def _receive(self, message: SchedulerMessage) -> None:
        """The scheduler's news, at the end of each step."""
        if not isinstance(message, StepOutput):
            return
        held = self._held
        for rid, token in zip(message.rids, message.tokens, strict=True):
            tokens = held.get(rid)
            if tokens is not None:
                tokens.append(token)
            elif (answer := self._live.get(rid)) is not None:
                answer.take_token(token, self._clock.now_s())
                self._check_end(answer, told=False)
        for delta in message.deltas:
            tokens = held.get(delta.rid)
            if tokens is None:
                self._take(delta)
            else:
                tokens += delta.token_ids
                if delta.finish is not None:
                    self._take(msgspec.structs.replace(delta, token_ids=tokens))

    def _take(self, delta: TokenDelta) -> None:
        answer = self._live.get(delta.rid)
        if answer is None:
            return
        answer.take(delta, self._clock.now_s())
        self._check_end(answer, told=delta.finish is not None)

    def _check_end(self, answer: Answer, *, told: bool) -> None:
        """`told`: the scheduler has ended it; otherwise a stop string may have, and the scheduler must hear of it."""
        if answer.finish is None:
            return
        del self._live[answer.request.rid]
        if not told:
            matched = StopMatched(rid=answer.request.rid, num_output_tokens=len(answer.output_ids))
            self._matches.append(matched)

    def _tell_matches(self) -> None:
        """Stop strings found in the step's news end their sequences; not inside the step, which is not re-entrant."""
        matches, self._matches = self._matches, []
        for match in matches:
            self._scheduler.handle(match)
