"""The tokenizer and chat template of a model, for whoever needs its token ids. Works without torch.

Transformers does the work; it is imported when a tokenizer is loaded, which takes seconds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from common.chat_templates import check_variables, chosen_template, named_template
from common.errors import UserError

log = logging.getLogger(__name__)

NO_TEMPLATE = "This model has no chat template; use /v1/completions, or serve it with one (--chat-template)."


class TemplateFault(ValueError):
    """The model has no chat template, or it refuses the messages. `about_messages`: the latter."""

    def __init__(self, message: str, *, about_messages: bool) -> None:
        super().__init__(message)
        self.about_messages = about_messages


class ModelTokenizer:
    """Text and chats to token ids, by one model's files. Blocking, thread-safe. `load` makes it."""

    def __init__(self, hugging_face: Any, *, variables: Mapping[str, Any] | None = None) -> None:
        self.hugging_face = hugging_face
        self._variables = dict(variables or {})  # for the chat template, below a request's own
        self.backend = hugging_face.backend_tokenizer
        self.backend.no_truncation()  # set once here: changing it per call is not thread-safe
        self.backend.no_padding()
        self._longest_token = max(map(len, self.backend.get_vocab(with_added_tokens=True)))

    @classmethod
    def load(
        cls,
        path: str,
        *,
        chat_template: str | None = None,
        template_name: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Self:
        """From a directory or hub id. `chat_template` (built-in name or file) goes in place of the model's,
        `template_name` picks one of the model's several; `variables` are what the template gets by default.

        Raises UserError.
        """
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer

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

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids as the tokenizer itself sees it."""
        return str(self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def least_tokens(self, text: str) -> int:
        """A count that `encode` cannot go below, without encoding: no token stands for more than the longest one."""
        return len(text) // self._longest_token

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool, variables: Mapping[str, Any]
    ) -> str:
        """The prompt text of a chat. Raises TemplateFault."""
        if self.hugging_face.chat_template is None:
            raise TemplateFault(NO_TEMPLATE, about_messages=False)
        try:
            return str(
                self.hugging_face.apply_chat_template(
                    list(messages),
                    tokenize=False,
                    continue_final_message=continue_final_message,
                    **{"add_generation_prompt": not continue_final_message, **self._variables, **variables},
                )
            )
        except Exception as error:  # the template is the model's code: whatever it raises is about the messages
            text = f"The model's chat template refuses these messages: {_first_sentence(error)}"
            raise TemplateFault(text, about_messages=True) from None


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{text[:300].rstrip('.')}."
