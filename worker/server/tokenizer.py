"""Text to token ids and chat to text, with the model's own tokenizer and template. Works without torch.

`Tokenizer` is blocking and thread-safe; `AsyncTokenizer` runs it in threads so that the event loop never waits for it.
`NoTokenizer` stands in for it under --skip-tokenizer-init.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol, TypeVar

from common.model_tokenizer import ModelTokenizer, TemplateFault
from worker.sampling_params import SamplingParams
from worker.server.detokenizer import TokenTable
from worker.server.errors import RequestFault
from worker.server.text import IdPipeline, Pipeline, TextPipeline

T = TypeVar("T")

_THREADS = 4
_SHORT_CHARS = 4096  # of a prompt that takes a few ms, so that anybody may wait for it
_LONGER = 2  # times as long as one's own: as much may be waited for, too
NO_TEXTS = "This server runs with --skip-tokenizer-init and takes token ids only; send input_ids to /generate."


class TextCodec(Protocol):
    """From text to token ids and back. Blocking, thread-safe."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that chats are written by; None: there is none."""
        ...

    def check_text(self, param: str) -> None:
        """Raise RequestFault (400) unless texts can be turned into tokens; `param` is the field that holds one."""
        ...

    def pipeline(self, sampling: SamplingParams) -> Pipeline:
        """How the tokens of a sequence reach its client."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids as the tokenizer itself sees it."""
        ...

    def token_bytes(self, token_id: int, *, specials: bool = True) -> bytes:
        """The bytes of one token's text. Without `specials` special tokens have none."""
        ...

    def least_tokens(self, text: str) -> int:
        """A count that `encode` cannot go below, without encoding: no token stands for more than the longest one."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> list[int]:
        """Token ids of a chat; the template itself writes the special tokens."""
        ...


class NoTokenizer:
    """Every text is refused; tokens pass as they are."""

    chat_template = None

    def check_text(self, param: str) -> None:
        raise RequestFault(400, NO_TEXTS, param=param)

    def pipeline(self, sampling: SamplingParams) -> Pipeline:
        return IdPipeline()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise RequestFault(400, NO_TEXTS)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        raise RequestFault(400, NO_TEXTS)

    def token_bytes(self, token_id: int, *, specials: bool = True) -> bytes:
        return f"token_id:{token_id}".encode()

    def least_tokens(self, text: str) -> int:
        return 0

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> list[int]:
        raise RequestFault(400, NO_TEXTS, param="messages")


class Tokenizer(ModelTokenizer):
    """The tokenizer of one model. `load` makes it."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that chats are written by."""
        template = self.hugging_face.chat_template
        return template if isinstance(template, str) else None

    def check_text(self, param: str) -> None:
        """Any text will do."""

    def pipeline(self, sampling: SamplingParams) -> Pipeline:
        """Tokens become text."""
        return TextPipeline(self.table(skip_special_tokens=sampling.skip_special_tokens), sampling)

    @cached_property
    def shown(self) -> TokenTable:
        """Token texts for answers without special tokens."""
        return TokenTable(self.backend, skip_special=True)

    @cached_property
    def shown_with_specials(self) -> TokenTable:
        """Token texts for answers with special tokens."""
        return TokenTable(self.backend, skip_special=False)

    def table(self, *, skip_special_tokens: bool) -> TokenTable:
        """Token texts by a request's wish."""
        return self.shown if skip_special_tokens else self.shown_with_specials

    def token_bytes(self, token_id: int, *, specials: bool = True) -> bytes:
        """The bytes of one token's text. Without `specials` special tokens have none."""
        return self.table(skip_special_tokens=not specials)[token_id]

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> str:
        """The prompt text of a chat. Raises RequestFault if the template refuses the messages or there is none."""
        try:
            return super().render_chat(messages, continue_final_message=continue_final_message, variables=variables)
        except TemplateFault as fault:
            raise RequestFault(400, str(fault), param="messages" if fault.about_messages else None) from None

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> list[int]:
        """Token ids of a chat; the template itself writes the special tokens."""
        text = self.render_chat(messages, continue_final_message=continue_final_message, variables=variables)
        return self.encode(text, add_special_tokens=False)


class AsyncTokenizer:
    """Runs a tokenizer's work in a few threads."""

    def __init__(self, tokenizer: TextCodec) -> None:
        self.tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenizer")
        self._under_way: dict[asyncio.Event, int] = {}  # prompts in order of arrival, and their characters

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run_in_turn(self, work: Callable[[], T], num_chars: int) -> T:
        """The same for prompts, of so many characters in all. They leave in the order in which they came: routing
        foretells which of them computes a common beginning, and which finds it. Nobody waits for a much longer one.
        """
        turn = asyncio.Event()
        self._under_way[turn] = num_chars
        longest = max(_LONGER * num_chars, _SHORT_CHARS)
        try:
            result = await self.run(work)
            while (earlier := self._before(turn, longest)) is not None:
                await earlier.wait()
            return result
        finally:
            del self._under_way[turn]
            turn.set()

    def _before(self, turn: asyncio.Event, longest: int) -> asyncio.Event | None:
        """The first that came before `turn` and is not there yet, of those with up to `longest` characters."""
        for other, num_chars in self._under_way.items():
            if other is turn:
                return None
            if num_chars <= longest:
                return other
        return None

    def close(self) -> None:
        """End the threads; work in progress is abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)
