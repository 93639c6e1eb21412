"""The tokenizers of the models behind this gateway: found by what workers tell, loaded in a thread, used in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TypeVar

import msgspec

from common.errors import UserError
from common.model_tokenizer import ModelTokenizer, TemplateFault
from gateway.kv_events.endpoints import TokenizerSource
from gateway.kv_events.prompts import Chat, Ids, Prompt, Unforeseeable
from gateway.kv_events.token_cache import TokenCache

_LOG = logging.getLogger("gateway.tokenizer")
_THREADS = 2

T = TypeVar("T")


class PromptEncoder:
    """Token ids of one model's prompts. Blocking, thread-safe."""

    def __init__(self, tokenizer: ModelTokenizer, cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        specials = [token.content for token in tokenizer.backend.get_added_tokens_decoder().values() if token.special]
        self.cache = TokenCache(self._encode, specials, cache_bytes)

    @classmethod
    def load(cls, source: TokenizerSource, cache_bytes: int) -> PromptEncoder:
        """Takes seconds. Raises UserError."""
        if not Path(source.path).is_dir():
            raise UserError(f"There is no directory {source.path} on this machine; give one by --tokenizer-path.")
        tokenizer = ModelTokenizer.load(
            source.path,
            chat_template=source.chat_template,
            template_name=source.template_name,
            variables=msgspec.json.decode(source.variables, type=dict) if source.variables else None,
        )
        return cls(tokenizer, cache_bytes)

    def encode(self, prompt: Prompt) -> tuple[bytes, bool]:
        """(ids as int32 bytes, whether they were remembered). Raises Unforeseeable."""
        if isinstance(prompt, Ids):
            return prompt.packed, True
        if not isinstance(prompt, Chat):
            return self.cache.encode(prompt.text, add_special_tokens=True)
        try:
            text = self._tokenizer.render_chat(
                prompt.messages,
                continue_final_message=prompt.continue_final_message,
                variables=prompt.variables,
            )
        except TemplateFault:
            raise Unforeseeable("template") from None
        return self.cache.encode(text, add_special_tokens=False)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


class Tokenizers:
    """One encoder for each source, which remembers `cache_bytes`. On the event loop; work runs in its threads."""

    def __init__(
        self, cache_bytes: int, load: Callable[[TokenizerSource, int], PromptEncoder] = PromptEncoder.load
    ) -> None:
        self._cache_bytes = cache_bytes
        self._load = load
        self._encoders: dict[TokenizerSource, PromptEncoder | None] = {}  # None: it cannot be loaded, or not yet
        self._loading: dict[TokenizerSource, asyncio.Task[None]] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenizer")

    def want(self, source: TokenizerSource) -> None:
        """Load it, unless that has been tried."""
        if source not in self._encoders:
            self._encoders[source] = None
            self._loading[source] = asyncio.create_task(self._fetch(source))

    def get(self, source: TokenizerSource | None) -> PromptEncoder | None:
        """The encoder, if it is there by now."""
        return self._encoders.get(source) if source is not None else None

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    @property
    def bytes_used(self) -> int:
        """Memory of all that is remembered."""
        return sum(encoder.cache.bytes_used for encoder in self._encoders.values() if encoder is not None)

    async def loaded(self) -> None:
        """Wait until nothing is being loaded."""
        while self._loading:
            await asyncio.gather(*self._loading.values())

    def close(self) -> None:
        """End the threads; work in progress is abandoned, and no exit of the process waits for a load."""
        for task in self._loading.values():
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self, source: TokenizerSource) -> None:
        try:
            self._encoders[source] = await _forsakable(partial(self._load, source, self._cache_bytes))
            _LOG.info("Prompts are compared by tokens, with the tokenizer in %s.", source.path)
        except UserError as error:
            _LOG.warning("Prompts are compared by text: %s", error)
        finally:
            del self._loading[source]


async def _forsakable(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread of its own that the process does not wait for when it ends."""
    result: Future[T] = Future()

    def do() -> None:
        result.set_running_or_notify_cancel()
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    Thread(target=do, name="tokenizer-load", daemon=True).start()
    return await asyncio.wrap_future(result)
