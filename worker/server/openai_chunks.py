"""How OpenAI's answers look: the head they share, finish reasons, usage, and the events of streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from worker.server.answers import Answer
from worker.server.http import DONE, event


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


def completion_fields(answer: Answer) -> dict[str, Any]:
    """What a completion's choice says since it was last read: its text, or its token ids where no texts are made."""
    if answer.pipeline.makes_text:
        return {"text": answer.read_new_text()}
    return {"text": "", "token_ids": answer.read_new_ids()}


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


class _OpenAIChunks:
    """What completion and chat streams share: their end."""

    def __init__(
        self, header: Header, answers: Sequence[Answer], n: int, usage_wanted: bool, cache_report: bool
    ) -> None:
        self._header = header
        self._answers = answers
        self._n = n
        self._usage_wanted = usage_wanted
        self._cache_report = cache_report

    def end(self) -> Iterator[bytes]:
        """Usage, if asked for, in an event without choices; then the closing mark."""
        if self._usage_wanted:
            yield event(self._header.fields([]) | {"usage": usage(self._answers, self._n, self._cache_report)})
        yield DONE

    def _event(self, index: int, **choice: Any) -> bytes:
        return event(self._header.fields([{"index": index, **choice}]))


class CompletionChunks(_OpenAIChunks):
    """One event per news; the last of a choice holds the finish reason too."""

    def news(self, answer: Answer) -> Iterator[bytes]:
        """Nothing if tokens came that make no whole character yet."""
        new = completion_fields(answer)
        if answer.finish is not None:
            yield self._event(answer.index, **new, logprobs=None, **finish_fields(answer))
        elif any(new.values()):
            yield self._event(answer.index, **new, logprobs=None, finish_reason=None)


class ChatChunks(_OpenAIChunks):
    """For each choice: the role, then content, then the finish reason by itself."""

    def __init__(
        self, header: Header, answers: Sequence[Answer], n: int, usage_wanted: bool, cache_report: bool
    ) -> None:
        super().__init__(header._replace(object="chat.completion.chunk"), answers, n, usage_wanted, cache_report)
        self._begun: set[int] = set()

    def news(self, answer: Answer) -> Iterator[bytes]:
        """A content event only if there is text."""
        index = answer.index
        if index not in self._begun:
            self._begun.add(index)
            yield self._event(index, delta={"role": "assistant", "content": ""}, logprobs=None, finish_reason=None)
        if text := answer.read_new_text():
            yield self._event(index, delta={"content": text}, logprobs=None, finish_reason=None)
        if answer.finish is not None:
            yield self._event(index, delta={}, logprobs=None, **finish_fields(answer))
