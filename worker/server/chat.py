"""A chat from request to answer, the same for every API that has one: endpoints translate into ChatRequest and out of
ChatReader's parts, and do nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import ValidationError

from worker.sampling_params import GrammarAsked, SamplingParams
from worker.server.answers import Answer, Chunk
from worker.server.chat_messages import template_messages
from worker.server.errors import RequestFault, from_validation
from worker.server.parsers.base import (
    CallArguments,
    CallStart,
    Content,
    FirstCallOnly,
    OutputParser,
    Part,
    Reasoning,
    merged,
)
from worker.server.parsers.choose import Families
from worker.server.parsers.thinking import OPEN
from worker.server.prompts import Ask, encode_chat, start
from worker.server.sampling import copies
from worker.server.schemas import ChatRequest
from worker.server.service import Serving
from worker.server.streams import Generation
from worker.server.tokenizer import TextCodec
from worker.server.tools import ToolUse

_TAIL_TOKENS = 16  # of a prompt: enough to see whether it ends in an opening mark
_OWN_VARIABLES = frozenset({"messages", "tools", "tokenize", "add_generation_prompt", "continue_final_message"})
_LENGTHS = ("max_completion_tokens", "max_tokens")  # the first one given is the one that counts
_MISTRAL_ID_CHARS = 9  # its templates refuse others


@dataclass(slots=True)
class CallMade:
    """A tool call of an answer so far."""

    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """What is new of an answer: its parts, and the chunk they come from."""

    parts: list[Part]
    chunk: Chunk


class ChatReader:
    """Reads one answer as parts. Whoever reads it is the only one who reads the answer."""

    def __init__(self, answer: Answer, parser: OutputParser, *, stream_reasoning: bool, call_id_chars: int) -> None:
        self.answer = answer
        self.calls: list[CallMade] = []
        self._parser = parser
        self._stream_reasoning = stream_reasoning
        self._call_id_chars = call_id_chars
        self._held: list[Part] = []  # reasoning that shall come in one piece
        self._texts: dict[type, list[str]] = {Content: [], Reasoning: []}
        self._reasoning_tokens = 0  # of chunks that are nothing but reasoning
        self._mixed: list[str] = []  # reasoning of other chunks

    @property
    def content(self) -> str:
        """All content so far."""
        return "".join(self._texts[Content])

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return "".join(self._texts[Reasoning])

    def reasoning_tokens(self, tokenizer: TextCodec) -> int:
        """How many tokens the reasoning has, without its marks. Exact if the answer was read at once, which takes a
        while if there are many; to one or two if it was streamed."""
        return self._reasoning_tokens + sum(
            len(tokenizer.encode(text, add_special_tokens=False)) for text in self._mixed
        )

    @property
    def finish_reason(self) -> str:
        """OpenAI's word, once the answer has ended: tool_calls if it ended by itself with a call."""
        assert self.answer.finish is not None
        kind = self.answer.finish.kind
        return "tool_calls" if kind == "stop" and self.calls else kind

    def read(self) -> News:
        """What nobody has read yet."""
        chunk = self.answer.read()
        parts = self._parser.push(chunk.text)
        if chunk.finish is not None:
            parts = parts + self._parser.finish()
        for part in parts:
            self._note(part)
        self._count(chunk, parts)
        return News(self._gathered(merged(parts), ended=chunk.finish is not None), chunk)

    def _note(self, part: Part) -> None:
        match part:
            case CallStart(_, name):
                id_ = uuid.uuid4().hex
                whole = f"call_{id_[:24]}" if not self._call_id_chars else id_[: self._call_id_chars]
                self.calls.append(CallMade(whole, name))
            case CallArguments(index, text):
                self.calls[index].arguments += text
            case Content(text) | Reasoning(text):
                self._texts[type(part)].append(text)

    def _count(self, chunk: Chunk, parts: list[Part]) -> None:
        """Chunks that are all reasoning are counted; of those with other parts too the text is encoded later."""
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        if not reasoning:
            return
        if all(isinstance(part, Reasoning) for part in parts):
            self._reasoning_tokens += len(chunk.token_ids)
        else:
            self._mixed.append(reasoning)

    def _gathered(self, parts: list[Part], *, ended: bool) -> list[Part]:
        if self._stream_reasoning:
            return parts
        self._held = merged(self._held + parts)
        if ended or any(not isinstance(part, Reasoning) for part in self._held):
            parts, self._held = self._held, []
            return parts
        return []


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat under way."""

    generation: Generation
    readers: Sequence[ChatReader]


def chat_of(fields: dict[str, Any]) -> ChatRequest:
    """Another API's request as a chat. Raises RequestFault for what its own rules let pass."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from None


async def encode_request(serving: Serving, body: ChatRequest) -> tuple[list[int], ToolUse]:
    """The prompt's token ids, and what the tools mean. Raises RequestFault."""
    if body.continue_final_message and body.add_generation_prompt:
        text = "continue_final_message and add_generation_prompt exclude each other."
        raise RequestFault(400, text, param="add_generation_prompt")
    if taken := sorted(_OWN_VARIABLES & (body.chat_template_kwargs or {}).keys()):
        text = f"chat_template_kwargs: {taken[0]} belongs to the server; leave it out."
        raise RequestFault(400, text, param="chat_template_kwargs")
    use = ToolUse.of(body.tools, body.tool_choice, body.parallel_tool_calls, serving.families)
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    if body.add_generation_prompt is not None:
        variables["add_generation_prompt"] = body.add_generation_prompt
    if use.tools and serving.takes_tools:
        variables["tools"] = use.described
    input_ids = await encode_chat(
        serving,
        template_messages(body.messages, use.described, takes_tools=serving.takes_tools),
        continue_final_message=bool(body.continue_final_message),
        variables=variables,
    )
    return input_ids, use


async def begin(serving: Serving, body: ChatRequest, group_id: str) -> Chat:
    """Check a chat request and send it to the scheduler. Raises RequestFault, then nothing was sent."""
    sampling = serving.rules.for_chat(body)
    input_ids, use = await encode_request(serving, body)
    families = serving.families
    reasoning = body.separate_reasoning is not False
    inside = begins_in_reasoning(serving, body, input_ids)
    grammar = use.grammar(families, inside=inside)
    if grammar is not None:
        sampling = _with_grammar(serving, sampling, grammar)
    elif use.tools and families.keeps_specials or (families.reasoning == "gpt-oss" and reasoning):
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)

    def parser() -> OutputParser:
        if use.forced is not None:
            return use.forced_parser(families, reasoning=reasoning, inside=inside)
        found = families.parser(calls=bool(use.tools), reasoning=reasoning, inside=inside)
        return found if use.parallel else FirstCallOnly(found)

    length_param = next((name for name in _LENGTHS if getattr(body, name) is not None), None)
    generation = start(
        serving,
        [Ask(input_ids, one, "messages", length_param=length_param) for one in copies(sampling, body.n or 1)],
        group_id=group_id,
        priority=body.priority,
        extra_key=body.extra_key or body.cache_salt,
        stream=bool(body.stream),
    )
    id_chars = _MISTRAL_ID_CHARS if families.calls == "mistral" else 0
    stream_reasoning = body.stream_reasoning is not False
    readers = [
        ChatReader(answer, parser(), stream_reasoning=stream_reasoning, call_id_chars=id_chars)
        for answer in generation.answers
    ]
    return Chat(generation, readers)


def begins_in_reasoning(serving: Serving, body: ChatRequest, input_ids: Sequence[int]) -> bool:
    """Whether the answer's first character is reasoning: the prompt ends with the opening mark, or the model is one
    that always begins so."""
    families: Families = serving.families
    if families.reasoning not in ("qwen3", "deepseek-r1"):
        return False
    tail = serving.tokenizer.tokenizer.decode(input_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip()
    if tail.endswith(OPEN):
        return True
    fresh = not body.continue_final_message and not tail.endswith("</think>")
    return families.reasoning == "deepseek-r1" and fresh


def _with_grammar(serving: Serving, sampling: SamplingParams, grammar: GrammarAsked) -> SamplingParams:
    if sampling.grammar is not None:
        text = f"{sampling.grammar.param} and a tool_choice that forces a call exclude each other."
        raise RequestFault(400, text, param=sampling.grammar.param)
    serving.rules.grammars.check(grammar.param)
    return msgspec.structs.replace(sampling, grammar=grammar)
