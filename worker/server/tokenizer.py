"""Text to token ids and chat to text, with the model's own tokenizer and template. Works without torch.

`Tokenizer` is blocking and thread-safe; `AsyncTokenizer` runs it in threads so that the event loop never waits for it.
`NoTokenizer` stands in for it under --skip-tokenizer-init.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol, TypeVar

from common.errors import UserError
from worker.sampling_params import SamplingParams
from worker.server.chat_templates import check_variables, chosen_template, named_template
from worker.server.detokenizer import TokenTable
from worker.server.errors import RequestFault
from worker.server.text import IdPipeline, Pipeline, TextPipeline

log = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS = 4
NO_TEXTS = "This server runs with --skip-tokenizer-init and takes token ids only; send input_ids to /generate."


class TextCodec(Protocol):
    """From text to token ids and back. Blocking, thread-safe."""

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

    def check_text(self, param: str) -> None:
        raise RequestFault(400, NO_TEXTS, param=param)

    def pipeline(self, sampling: SamplingParams) -> Pipeline:
        return IdPipeline()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise RequestFault(400, NO_TEXTS)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        raise RequestFault(400, NO_TEXTS)

    def least_tokens(self, text: str) -> int:
        return 0

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> list[int]:
        raise RequestFault(400, NO_TEXTS, param="messages")


class Tokenizer:
    """The tokenizer of one model. `load` makes it."""

    def __init__(self, hugging_face: Any, *, variables: Mapping[str, Any] | None = None) -> None:
        self._hf = hugging_face
        self._variables = dict(variables or {})  # for the chat template, below a request's own
        self._backend = hugging_face.backend_tokenizer
        self._backend.no_truncation()  # set once here: changing it per call is not thread-safe
        self._backend.no_padding()
        self._longest_token = max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @classmethod
    def load(
        cls,
        path: str,
        *,
        chat_template: str | None = None,
        template_name: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """From a directory or hub id. `chat_template` (built-in name or file) goes in place of the model's,
        `template_name` picks one of the model's several; `variables` are what the template gets by default.

        Raises UserError.
        """
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer

        if chat_template is not None and template_name is not None:
            raise UserError("--chat-template and --hf-chat-template-name exclude each other; give one.")
        check_variables(variables or {})
        template = None if chat_template is None else named_template(chat_template)
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except Exception as error:  # it raises many kinds
            log.debug("AutoTokenizer failed", exc_info=error)
            raise UserError(
                f"Cannot load a tokenizer from {path} ({type(error).__name__}); "
                "name a directory with a tokenizer.json by --tokenizer-path."
            ) from None
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"The tokenizer of {path} has no tokenizer.json; convert it with Transformers first.")
        own = tokenizer.chat_template
        tokenizer.chat_template = chosen_template(own, template_name) if template is None else template
        if tokenizer.chat_template is None and own:
            log.warning(
                "None of the chat templates %s is the default; chats need --hf-chat-template-name.", sorted(own)
            )
        return cls(tokenizer, variables=variables)

    def check_text(self, param: str) -> None:
        """Any text will do."""

    def pipeline(self, sampling: SamplingParams) -> Pipeline:
        """Tokens become text."""
        return TextPipeline(self.table(skip_special_tokens=sampling.skip_special_tokens), sampling)

    @cached_property
    def shown(self) -> TokenTable:
        """Token texts for answers without special tokens."""
        return TokenTable(self._backend, skip_special=True)

    @cached_property
    def shown_with_specials(self) -> TokenTable:
        """Token texts for answers with special tokens."""
        return TokenTable(self._backend, skip_special=False)

    def table(self, *, skip_special_tokens: bool) -> TokenTable:
        """Token texts by a request's wish."""
        return self.shown if skip_special_tokens else self.shown_with_specials

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids as the tokenizer itself sees it."""
        return str(self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def least_tokens(self, text: str) -> int:
        """A count that `encode` cannot go below, without encoding: no token stands for more than the longest one."""
        return len(text) // self._longest_token

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> str:
        """The prompt text of a chat. Raises RequestFault if the template refuses the messages or there is none."""
        if self._hf.chat_template is None:
            raise RequestFault(
                400, "This model has no chat template; use /v1/completions, or serve it with one (--chat-template)."
            )
        try:
            return str(
                self._hf.apply_chat_template(
                    list(messages),
                    tokenize=False,
                    add_generation_prompt=not continue_final_message,
                    continue_final_message=continue_final_message,
                    **{**self._variables, **variables},
                )
            )
        except Exception as error:  # the template is the model's code: whatever it raises is about the messages
            text = f"The model's chat template refuses these messages: {_first_sentence(error)}"
            raise RequestFault(400, text, param="messages") from None

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

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """End the threads; work in progress is abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{text[:300].rstrip('.')}."
