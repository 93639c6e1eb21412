"""How OpenAI's answers look: the head they share, finish reasons, usage, and the events of streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from worker.server.answers import Answer, Chunk
from worker.server.chat import Chat, ChatReader
from worker.server.http import DONE, event
from worker.server.logprobs import CompletionLogprobs, ScoredToken, chat_logprobs, scored_prompt, scored_tokens
from worker.server.parsers.base import CallArguments, CallStart, Content, Part, Reasoning
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


def chat_finish_fields(reader: ChatReader) -> dict[str, Any]:
    """The same of a chat's answer, which may end with calls."""
    return finish_fields(reader.answer) | {"finish_reason": reader.finish_reason}


def chat_message(reader: ChatReader) -> dict[str, Any]:
    """The message of an answer that was read to its end."""
    message: dict[str, Any] = {"role": "assistant", "content": reader.content or (None if reader.calls else "")}
    if reader.reasoning:
        message["reasoning_content"] = reader.reasoning
    if reader.calls:
        message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in reader.calls]
    return message


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _chat_delta(part: Part, reader: ChatReader) -> dict[str, Any]:
    """A part of an answer as OpenAI's streams have it."""
    match part:
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, name):
            return {"tool_calls": [{"index": index, **_call(reader.calls[index].id, name, "")}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case Content(text):
            return {"content": text}


def chat_choice_logprobs(answer: Answer, scored: Sequence[ScoredToken], tokenizer: TextCodec) -> dict[str, Any] | None:
    """The `logprobs` of tokens of a chat choice; null unless asked for."""
    return None if answer.request.sampling.logprobs is None else chat_logprobs(scored, tokenizer.token_bytes)


def chat_scored(answer: Answer, chunk: Chunk) -> list[ScoredToken]:
    """A chunk's tokens with their log-probabilities; none unless asked for."""
    return [] if answer.request.sampling.logprobs is None else scored_tokens(chunk.token_ids, chunk.scores)


class CompletionTexts:
    """What the choices of a completion say, piece by piece. `echoes`: the prompts' texts, one for each answer, if they
    shall stand before the answers; `scored`: the client asked for log-probabilities."""

    def __init__(
        self, tokenizer: TextCodec, answers: Sequence[Answer], echoes: Sequence[str] | None, *, scored: bool
    ) -> None:
        self._echoes = echoes
        self._scored = scored
        shown = partial(tokenizer.token_bytes, specials=False)
        self._logprobs = [CompletionLogprobs(tokenizer.token_bytes, shown) for _ in answers]

    def read(self, answer: Answer) -> dict[str, Any]:
        """The fields of a choice since it was last read: text, token ids where no texts are made, log-probabilities."""
        chunk = answer.read()
        text, logprobs = chunk.text, None
        tokens = scored_tokens(chunk.token_ids, chunk.scores) if self._scored else []
        if chunk.first and self._echoes is not None:
            text = self._echoes[answer.index] + text
            tokens = scored_prompt(answer.request.input_ids, answer.prompt_scores) + tokens
        if self._scored:
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


def chat_usage(readers: Sequence[ChatReader], tokenizer: TextCodec, cache_report: bool) -> dict[str, Any]:
    """The same of a chat whose answers were read to their ends, with the tokens of their reasoning if there is some."""
    counts = usage([reader.answer for reader in readers], len(readers), cache_report)
    if reasoning_tokens := sum(reader.reasoning_tokens(tokenizer) for reader in readers):
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
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
            yield event(self._header.fields([]) | {"usage": self._usage_at_end()})
        yield DONE

    def _event(self, index: int, **choice: Any) -> bytes:
        fields = self._header.fields([{"index": index, **choice}])
        return event(fields | {"usage": self._usage()} if self._wanted.always else fields)

    def _usage(self) -> dict[str, Any]:
        return usage(self._answers, self._n, self._wanted.cached)

    def _usage_at_end(self) -> dict[str, Any]:
        return self._usage()


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
    """For each choice: the role, then reasoning, content and calls, then the finish reason by itself."""

    def __init__(self, header: Header, chat: Chat, n: int, wanted: UsageWanted, tokenizer: TextCodec) -> None:
        super().__init__(header._replace(object="chat.completion.chunk"), chat.generation.answers, n, wanted)
        self._readers = chat.readers
        self._tokenizer = tokenizer
        self._begun: set[int] = set()
        self._unsaid: list[list[ScoredToken]] = [[] for _ in chat.readers]  # tokens whose text is still held back

    def news(self, answer: Answer) -> Iterator[bytes]:
        """An event for each part. Log-probabilities wait for the text that their tokens are part of; those of tokens
        without any come with the finish reason."""
        index = answer.index
        if index not in self._begun:
            self._begun.add(index)
            yield self._event(index, delta={"role": "assistant", "content": ""}, logprobs=None, finish_reason=None)
        if not answer.has_something_to_say:
            return
        reader = self._readers[index]
        read = reader.read()
        self._unsaid[index] += chat_scored(answer, read.chunk)
        for part in read.parts:
            delta, logprobs = _chat_delta(part, reader), self._logprobs(answer)
            yield self._event(index, delta=delta, logprobs=logprobs, finish_reason=None)
        if read.chunk.finish is not None:
            logprobs = self._logprobs(answer) if self._unsaid[index] or not read.parts else None
            yield self._event(index, delta={}, logprobs=logprobs, **chat_finish_fields(reader))

    def _usage_at_end(self) -> dict[str, Any]:
        return chat_usage(self._readers, self._tokenizer, self._wanted.cached)

    def _logprobs(self, answer: Answer) -> dict[str, Any] | None:
        """Those of the tokens that no event has told yet."""
        scored, self._unsaid[answer.index] = self._unsaid[answer.index], []
        return chat_choice_logprobs(answer, scored, self._tokenizer)
