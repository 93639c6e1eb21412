"""How OpenAI's answers look: the head they share, finish reasons, usage, and the events of streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from worker.server.answers import Answer, Chunk
from worker.server.http import DONE, event
from worker.server.logprobs import CompletionLogprobs, chat_logprobs, scored_prompt, scored_tokens
from worker.server.tokenizer import TextCodec


class Header(NamedTuple):
    """What every object of one answer repeats."""

    id: str
    object: str
    created: int
    model: str

    def fields(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A whole object around `choices`."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def finish_fields(answer: Answer) -> dict[str, Any]:
    """finish_reason, and what matched: a stop string, a token id, or null."""
    assert answer.finish is not None
    return {"finish_reason": answer.finish.kind, "matched_stop": answer.finish.matched}


def chat_choice_logprobs(answer: Answer, chunk: Chunk, tokenizer: TextCodec) -> dict[str, Any] | None:
    """The `logprobs` of a chunk of a chat choice; null unless asked for."""
    if answer.request.sampling.logprobs is None:
        return None
    return chat_logprobs(scored_tokens(chunk.token_ids, chunk.scores), tokenizer.token_bytes)


class CompletionTexts:
    """What the choices of a completion say, piece by piece. `echoes`: the prompts' texts, one for each answer, if they
    shall stand before the answers."""

    def __init__(self, tokenizer: TextCodec, answers: Sequence[Answer], echoes: Sequence[str] | None) -> None:
        self._echoes = echoes
        shown = partial(tokenizer.token_bytes, specials=False)
        self._logprobs = [CompletionLogprobs(tokenizer.token_bytes, shown) for _ in answers]

    def read(self, answer: Answer) -> dict[str, Any]:
        """The fields of a choice since it was last read: text, token ids where no texts are made, log-probabilities."""
        chunk = answer.read()
        text, logprobs = chunk.text, None
        tokens = scored_tokens(chunk.token_ids, chunk.scores) if answer.request.sampling.logprobs is not None else []
        if chunk.first and self._echoes is not None:
            text = self._echoes[answer.index] + text
            tokens = scored_prompt(answer.request.input_ids, answer.prompt_scores) + tokens
        if answer.request.sampling.logprobs is not None:
            logprobs = self._logprobs[answer.index].of(tokens)
        ids = {} if answer.pipeline.makes_text else {"token_ids": chunk.token_ids}
        return {"text": text, **ids, "logprobs": logprobs}


def usage(answers: Sequence[Answer], n: int, cache_report: bool) -> dict[str, Any]:
    """Token counts of all answers; each prompt counts once, whatever `n` is."""
    prompts = answers[::n]
    prompt_tokens = sum(answer.prompt_tokens for answer in prompts)
    completion_tokens = sum(len(answer.output_ids) for answer in answers)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cache_report:
        counts["prompt_tokens_details"] = {"cached_tokens": sum(answer.cached_tokens for answer in prompts)}
    return counts


@dataclass(frozen=True, slots=True)
class UsageWanted:
    """Where a stream tells token counts: in an event of their own at the end, and in every other event too."""

    at_end: bool
    always: bool
    cached: bool  # with the cached part of the prompts


class _OpenAIChunks:
    """What completion and chat streams share: usage and their end."""

    def __init__(self, header: Header, answers: Sequence[Answer], n: int, wanted: UsageWanted) -> None:
        self._header = header
        self._answers = answers
        self._n = n
        self._wanted = wanted

    def end(self) -> Iterator[bytes]:
        """Usage, if asked for, in an event without choices; then the closing mark."""
        if self._wanted.at_end:
            yield event(self._header.fields([]) | self._usage())
        yield DONE

    def _event(self, index: int, **choice: Any) -> bytes:
        fields = self._header.fields([{"index": index, **choice}])
        return event(fields | self._usage() if self._wanted.always else fields)

    def _usage(self) -> dict[str, Any]:
        return {"usage": usage(self._answers, self._n, self._wanted.cached)}


class CompletionChunks(_OpenAIChunks):
    """One event per news; the last of a choice holds the finish reason too."""

    def __init__(
        self, header: Header, answers: Sequence[Answer], n: int, wanted: UsageWanted, texts: CompletionTexts
    ) -> None:
        super().__init__(header, answers, n, wanted)
        self._texts = texts

    def news(self, answer: Answer) -> Iterator[bytes]:
        """Nothing if tokens came that make no whole character yet."""
        if answer.has_something_to_say:
            end = {"finish_reason": None} if answer.finish is None else finish_fields(answer)
            yield self._event(answer.index, **self._texts.read(answer), **end)


class ChatChunks(_OpenAIChunks):
    """For each choice: the role, then content, then the finish reason by itself."""

    def __init__(
        self, header: Header, answers: Sequence[Answer], n: int, wanted: UsageWanted, tokenizer: TextCodec
    ) -> None:
        super().__init__(header._replace(object="chat.completion.chunk"), answers, n, wanted)
        self._tokenizer = tokenizer
        self._begun: set[int] = set()

    def news(self, answer: Answer) -> Iterator[bytes]:
        """A content event only if there is text. Log-probabilities wait for the text that their tokens are part of;
        those of tokens without any come with the finish reason."""
        index = answer.index
        if index not in self._begun:
            self._begun.add(index)
            yield self._event(index, delta={"role": "assistant", "content": ""}, logprobs=None, finish_reason=None)
        if not answer.has_something_to_say:
            return
        chunk = answer.read()
        logprobs = chat_choice_logprobs(answer, chunk, self._tokenizer)
        if chunk.text:
            yield self._event(index, delta={"content": chunk.text}, logprobs=logprobs, finish_reason=None)
            logprobs = None
        if chunk.finish is not None:
            yield self._event(index, delta={}, logprobs=logprobs, **finish_fields(answer))
