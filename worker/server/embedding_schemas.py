"""Bodies of the requests for embeddings: OpenAI's, and SGLang's /encode."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from worker.server.fields import MAX_TOKENS, Body, Identifier, Priority, Unbuilt
from worker.server.schemas import NativePrompts, Prompts, as_prompts

MAX_INPUTS = 2048  # of one request, as OpenAI has it


def _not_empty(prompts: Prompts) -> Prompts:
    """A text without characters has no meaning, even if its tokenizer puts a token at its end."""
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"must not be empty (the input at index {index} is)")
    return prompts


Inputs = Annotated[Prompts, BeforeValidator(partial(as_prompts, most=MAX_INPUTS)), AfterValidator(_not_empty)]
Dimensions = Annotated[int | None, Field(ge=1, le=MAX_TOKENS)]


class EmbeddingsBody(Body):
    """POST /v1/embeddings."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions = None
    rid: Identifier = None
    priority: Priority = None
    cache_salt: Identifier = None
    extra_key: Identifier = None
    lora_path: Unbuilt = None


class EncodeBody(NativePrompts):
    """POST /encode."""

    dimensions: Dimensions = None

    @field_validator("text")
    @classmethod
    def _texts(cls, text: str | list[str] | None) -> str | list[str] | None:
        if text is not None:
            _not_empty([text] if isinstance(text, str) else text)
        return text
