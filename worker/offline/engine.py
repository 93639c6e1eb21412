"""The engine in this process, without a server: validation, text and answers are made by the very code that the server
uses, and stand in the same objects as the answers of POST /generate."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from pydantic import ValidationError

from common.errors import UserError
from common.paths import cache_root
from common.settings import validated
from worker.config import WorkerSettings
from worker.ipc.messages import CallReply, GenerateRequest, UpdateWeights
from worker.models.paths import resolve_model_path
from worker.offline.driver import Call, Driver, Object
from worker.preflight import check_before_loading
from worker.server.answers import Answer, first_fault
from worker.server.embedding_schemas import EncodeBody
from worker.server.errors import RequestFault, from_validation
from worker.server.limits import PromptLimits
from worker.server.native_batch import NativeBatch, NativeObjects
from worker.server.prompts import Ask, sequence_ids
from worker.server.sampling import SamplingRules
from worker.server.schemas import GenerateBody, NativePrompts
from worker.server.service import ModelFiles
from worker.server.vectors import asks_for, check_dimensions, native_objects

_Body = TypeVar("_Body", GenerateBody, EncodeBody)
_News = tuple[int, Object] | BaseException | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A call that is ready to start. `single`: its answer is one object, not a list."""

    answers: list[Answer]
    objects: NativeObjects
    single: bool


@dataclass(frozen=True, slots=True)
class _PreparedTexts:
    """The same for embeddings."""

    answers: list[Answer]
    dimensions: int | None
    single: bool


class Engine:
    """One replica's engine. Calls may come from any thread and any event loop, at the same time: they share batches.
    Use it as a context manager, or call `shutdown`."""

    def __init__(self, model_path: str, **settings: Any) -> None:
        """`settings` are those of `canopy worker`, with underscores. Raises UserError for what the user can mend."""
        chosen = validated(WorkerSettings, {"model_path": model_path, **settings})
        if chosen.kv_events_config is not None:
            raise UserError("kv_events_config: an offline engine's cache is nobody else's business; leave it out.")
        check_before_loading(chosen)
        path = str(resolve_model_path(model_path, cache_root(os.environ), chosen.revision, chosen.download_dir))
        self._files = ModelFiles.load(path, chosen)
        self._driver = Driver(chosen.model_copy(update={"model_path": path, "revision": None}))
        self._rules = SamplingRules.of(chosen, self._files.sampling_defaults, self._driver.ready)
        self._limits = PromptLimits(self._driver.ready, chosen.allow_auto_truncate)
        self._rids = itertools.count()

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
        ready = self._prepared({"text": prompts, "input_ids": input_ids, "sampling_params": sampling_params, **more})
        news: SimpleQueue[_News] = SimpleQueue()
        call = Call(ready.answers, news.put)
        self._driver.start(call)
        _wait(news, lambda: self._driver.abort(call))
        return self._whole(ready)

    def stream(
        self,
        prompts: str | list[str] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> Iterator[dict[str, Any]]:
        """As `generate`, but an object for each piece of news: what there is so far of one answer; with several answers
        `index` tells which. Leaving the loop early ends the generation."""
        ready = self._prepared({"text": prompts, "input_ids": input_ids, "sampling_params": sampling_params, **more})
        return self._streamed(ready)

    def encode(
        self,
        prompts: str | list[str] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        **more: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Embeddings of texts or token ids: `{"embedding", "meta_info"}` each, a list for a list; the embedding is a
        float32 array, 1 long. `more` are further fields of /encode, such as dimensions. Raises RequestFault."""
        ready = self._prepared_texts({"text": prompts, "input_ids": input_ids, **more})
        news: SimpleQueue[_News] = SimpleQueue()
        call = Call(ready.answers, news.put)
        self._driver.start(call)
        _wait(news, lambda: self._driver.abort(call))
        return self._vectors(ready)

    async def async_encode(
        self,
        prompts: str | list[str] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        **more: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """As `encode`, without keeping the event loop. Cancelling it ends the work."""
        fields = {"text": prompts, "input_ids": input_ids, **more}
        ready = await asyncio.to_thread(self._prepared_texts, fields)
        await self._wait_for(ready.answers)
        return self._vectors(ready)

    async def async_generate(
        self,
        prompts: str | list[str] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """As `generate`, without keeping the event loop. Cancelling it ends the generation."""
        fields = {"text": prompts, "input_ids": input_ids, "sampling_params": sampling_params, **more}
        ready = await asyncio.to_thread(self._prepared, fields)
        await self._wait_for(ready.answers)
        return self._whole(ready)

    async def async_stream(
        self,
        prompts: str | list[str] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """As `stream`, for `async for`."""
        fields = {"text": prompts, "input_ids": input_ids, "sampling_params": sampling_params, **more}
        ready = await asyncio.to_thread(self._prepared, fields)
        news, tell = _loop_queue()
        call = Call(ready.answers, tell, self._renderer(ready))
        self._driver.start(call)
        try:
            while (item := _check(await news.get())) is not None:
                yield _shown(item, ready.single)
        finally:
            self._driver.abort(call)

    def flush_cache(self) -> None:
        """Empty the prefix cache. Raises RequestFault while requests run."""
        reply = self._driver.flush_cache()
        if not reply.ok:
            raise RequestFault(400, reply.message)

    def update_weights_from_disk(
        self,
        model_path: str,
        *,
        weight_version: str | None = None,
        abort_all_requests: bool = False,
        drain_timeout_s: float | None = None,
    ) -> None:
        """Compute with the weights in `model_path`, a checkpoint of the same model, from now on; the prefix cache is
        emptied. Calls under way end by the old ones first, for `drain_timeout_s` at most, or are aborted; others wait.
        Raises RequestFault, with nothing changed, if that cannot be."""
        answer = self._driver.update_weights(
            UpdateWeights(
                model_path=model_path,
                weight_version=weight_version,
                abort_all=abort_all_requests,
                drain_timeout_s=drain_timeout_s,
            )
        )
        if isinstance(answer, CallReply):
            raise RequestFault(answer.status, answer.message, param=answer.param)

    def shutdown(self) -> None:
        """Free the model. The engine is of no use afterwards."""
        self._driver.close()

    def _prepared(self, fields: dict[str, Any]) -> _Prepared:
        """Validate and tokenise. Raises RequestFault."""
        if fields.pop("stream", False):
            raise RequestFault(400, "stream: call the method stream or async_stream instead.", param="stream")
        if self._driver.ready.embedding_size:
            raise RequestFault(400, "The model makes embeddings and no text; call encode instead.")
        body = _validated(GenerateBody, fields)
        batch = NativeBatch.of(body)
        asks, n = batch.asks(body, self._encoded(batch), self._rules)
        bytes_of = self._files.tokenizer.token_bytes if body.return_text_in_logprobs else None
        answers = self._answers(asks, body, batch.rids(body, n))
        objects = NativeObjects(bytes_of, prompt_ids=bool(body.return_prompt_token_ids))
        return _Prepared(answers, objects, batch.single and n == 1)

    def _prepared_texts(self, fields: dict[str, Any]) -> _PreparedTexts:
        """The same for embeddings."""
        if not self._driver.ready.embedding_size:
            raise RequestFault(400, "The model generates text and makes no embeddings; call generate instead.")
        body = _validated(EncodeBody, fields)
        check_dimensions(body.dimensions, self._driver.ready)
        batch = NativeBatch.of(body)
        asks = asks_for(self._encoded(batch), batch.param, single=batch.single)
        return _PreparedTexts(self._answers(asks, body, batch.rids(body, 1)), body.dimensions, batch.single)

    def _encoded(self, batch: NativeBatch) -> list[list[int]]:
        encode = self._files.tokenizer.encode
        return [encode(prompt) if isinstance(prompt, str) else prompt for prompt in batch.prompts]

    def _answers(self, asks: Sequence[Ask], body: NativePrompts, names: Sequence[str] | None) -> list[Answer]:
        """`names`: the caller's ids for them; the scheduler knows them by ours."""
        if names is None and isinstance(body.rid, str):
            names = sequence_ids(body.rid, len(asks))
        answers = []
        for index, ask in enumerate(asks):
            rid = str(next(self._rids))
            request = GenerateRequest(
                rid=rid,
                input_ids=self._limits.fit(ask.input_ids, ask.sampling, ask.param, ask.length_param),
                sampling=ask.sampling,
                priority=body.priority,
                extra_key=body.extra_key or body.cache_salt,
            )
            pipeline = self._files.tokenizer.pipeline(ask.sampling)
            name = rid if names is None else names[index]
            answers.append(Answer(name, request, index, pipeline, self._driver.now_s(), self._driver.weights))
        return answers

    async def _wait_for(self, answers: list[Answer]) -> None:
        news, tell = _loop_queue()
        call = Call(answers, tell)
        self._driver.start(call)
        try:
            _check(await news.get())
        except asyncio.CancelledError:
            self._driver.abort(call)
            raise

    def _vectors(self, ready: _PreparedTexts) -> dict[str, Any] | list[dict[str, Any]]:
        if (fault := first_fault(ready.answers)) is not None:
            raise fault
        objects = native_objects(ready.answers, ready.dimensions, self._driver.now_s())
        return objects[0] if ready.single else objects

    def _whole(self, ready: _Prepared) -> dict[str, Any] | list[dict[str, Any]]:
        objects = [ready.objects.of(answer, answer.last_s) for answer in ready.answers]
        return objects[0] if ready.single else objects

    def _renderer(self, ready: _Prepared) -> Callable[[Answer], Object]:
        return lambda answer: ready.objects.of(answer, answer.last_s)

    def _streamed(self, ready: _Prepared) -> Iterator[dict[str, Any]]:
        news: SimpleQueue[_News] = SimpleQueue()
        call = Call(ready.answers, news.put, self._renderer(ready))
        self._driver.start(call)
        try:
            while (item := _check(news.get())) is not None:
                yield _shown(item, ready.single)
        finally:
            self._driver.abort(call)


def _validated(body: type[_Body], fields: dict[str, Any]) -> _Body:
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from None


def _check(news: _News) -> tuple[int, Object] | None:
    if isinstance(news, BaseException):
        raise news
    return news


def _shown(item: tuple[int, Object], single: bool) -> dict[str, Any]:
    index, content = item
    return content if single else content | {"index": index}


def _wait(news: SimpleQueue[_News], abort: Callable[[], None]) -> None:
    """Until a call has ended. When interrupted (Ctrl-C), end it first."""
    try:
        _check(news.get())
    except KeyboardInterrupt:
        abort()
        _check(news.get())
        raise


def _loop_queue() -> tuple[asyncio.Queue[_News], Callable[[_News], None]]:
    """A queue of the running loop, and what puts into it from another thread."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[_News]()

    def tell(item: _News) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(news.put_nowait, item)

    return news, tell
