"""Bodies of the requests this server takes: OpenAI's completions and chat, SGLang's native ones, the tools beside."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from worker.server.fields import (
    MAX_LISTED_LOGPROBS,
    MAX_MESSAGES,
    MAX_PROMPTS,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    Body,
    Count,
    GrammarText,
    Identifier,
    JsonText,
    LogitBias,
    MinNewTokens,
    MinP,
    NumNewTokens,
    NumTokensOrNone,
    Pattern,
    Penalty,
    Priority,
    RepetitionPenalty,
    Seed,
    Stop,
    StopRegex,
    StopTokenIds,
    Temperature,
    TokenIds,
    TopK,
    TopLogprobs,
    TopP,
    Unbuilt,
    unbuilt,
)
from worker.server.tool_fields import ToolCalls, ToolChoice, Tools

Prompts = list[str] | list[list[int]]


def as_prompts(value: Any, most: int = MAX_PROMPTS) -> Prompts:
    """A text, a list of texts, a list of token ids or a list of such lists, as a list of at most so many prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, token ids, or a list of either, and not empty")
    if all(type(item) is int for item in value):
        return [value]
    if len(value) > most:
        raise ValueError(f"has {len(value)} prompts; at most {most} fit in one request")
    if all(isinstance(item, str) for item in value) or all(_is_ids(item) for item in value):
        return value
    raise ValueError("must be a text, token ids, or a list of either")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


class SamplingFields(Body):
    """Sampling fields whose names OpenAI and native requests share."""

    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    frequency_penalty: Penalty = None
    presence_penalty: Penalty = None
    repetition_penalty: RepetitionPenalty = None
    stop: Stop = None
    stop_token_ids: StopTokenIds = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    n: Count = None
    logit_bias: LogitBias = None
    regex: Pattern = None
    ebnf: GrammarText = None
    json_schema: JsonText | dict[str, Any] | bool | None = None
    stop_regex: StopRegex = None


class StreamOptions(Body):
    """OpenAI's stream_options."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(Body):
    """The schema of a response_format. Answers are held to it whether or not `strict` is set."""

    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's response_format, and SGLang's structural tags in both of their forms."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class OpenAIFields(SamplingFields):
    """What completions and chat have in common."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    max_tokens: NumTokensOrNone = None
    min_tokens: MinNewTokens = None
    seed: Seed = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: Identifier = None
    priority: Priority = None
    cache_salt: Identifier = None
    extra_key: Identifier = None
    response_format: ResponseFormat | None = None
    lora_path: Unbuilt = None
    session_id: Unbuilt = None
    session_params: Unbuilt = None
    custom_logit_processor: Unbuilt = None
    custom_params: Unbuilt = None
    return_hidden_states: Unbuilt = None
    return_token_ids: Unbuilt = None
    return_prompt_token_ids: Unbuilt = None
    return_meta_info: Unbuilt = None


class CompletionRequest(OpenAIFields):
    """POST /v1/completions."""

    prompt: Annotated[Prompts, BeforeValidator(as_prompts)]
    logprobs: TopLogprobs = None
    echo: bool | None = None
    suffix: Unbuilt = None
    best_of: Count = None

    @property
    def num_kept(self) -> int:
        """Answers to each prompt that the client gets."""
        return self.n or 1

    @property
    def num_made(self) -> int:
        """Answers to each prompt that are generated; the best of them are kept."""
        return self.best_of or self.num_kept


def _as_text(value: Any) -> Any:
    """Content parts joined to one text; images, sound and video are refused."""
    if not isinstance(value, list | str | None):
        raise ValueError("must be a text or a list of text parts")
    if not isinstance(value, list):
        return value
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"parts must have type 'text', not {kind!r}: this server takes text only")
        if not isinstance(part.get("text"), str):
            raise ValueError("a text part must hold its text as a string")
    return "".join(part["text"] for part in value)


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_as_text)] = None
    name: Identifier = None
    tool_calls: ToolCalls = None
    tool_call_id: Identifier = None
    reasoning_content: str | None = None
    function_call: Unbuilt = None


class ChatRequest(OpenAIFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: NumNewTokens = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    functions: Unbuilt = None
    function_call: Annotated[Any, unbuilt("none", "auto")] = None
    modalities: Annotated[Any, unbuilt(["text"])] = None
    audio: Unbuilt = None
    prediction: Unbuilt = None
    web_search_options: Unbuilt = None
    input_ids: Unbuilt = None


class NativeSampling(SamplingFields):
    """`sampling_params` of native requests. An unknown key is an error: it is mostly a misspelt one."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: NumTokensOrNone = None
    min_new_tokens: MinNewTokens = None
    sampling_seed: Seed = None
    spaces_between_special_tokens: Annotated[Any, unbuilt(True)] = None
    stream_interval: Annotated[int, Field(ge=1, le=2**20)] | None = None
    structural_tag: JsonText | dict[str, Any] | None = None
    custom_params: Unbuilt = None
    beam_width: Unbuilt = None


_T = TypeVar("_T")
EachPrompt = Annotated[list[_T], Field(min_length=1, max_length=MAX_PROMPTS)]
StartLen = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]
NumTopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
ListedIds = Annotated[list[int], Field(max_length=MAX_LISTED_LOGPROBS, fail_fast=True)]


class NativePrompts(Body):
    """What native requests have in common: one of text and input_ids, single or batch."""

    text: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    rid: Identifier | list[Identifier] = None
    priority: Priority = None
    extra_key: Identifier = None
    cache_salt: Identifier = None
    input_embeds: Unbuilt = None
    image_data: Unbuilt = None
    video_data: Unbuilt = None
    audio_data: Unbuilt = None
    lora_path: Unbuilt = None


class GenerateBody(NativePrompts):
    """POST /generate."""

    sampling_params: NativeSampling | Annotated[list[NativeSampling], Field(max_length=MAX_PROMPTS)] | None = None
    stream: bool | None = None
    return_logprob: bool | EachPrompt[bool] | None = None
    logprob_start_len: StartLen | EachPrompt[StartLen] | None = None
    top_logprobs_num: NumTopLogprobs | EachPrompt[NumTopLogprobs] | None = None
    token_ids_logprob: ListedIds | EachPrompt[ListedIds | None] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    return_hidden_states: Unbuilt = None
    return_entropy: Unbuilt = None
    return_routed_experts: Unbuilt = None
    session_id: Unbuilt = None
    session_params: Unbuilt = None
    custom_logit_processor: Unbuilt = None
    max_thinking_tokens: Unbuilt = None
    require_reasoning: Unbuilt = None
    background: Unbuilt = None


class TokenizeBody(Body):
    """POST /tokenize: exactly one of prompt and messages."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: TokenIds
    skip_special_tokens: bool | None = None


class PauseBody(Body):
    """POST /pause_generation: what happens to requests under way."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class AbortBody(Body):
    """POST /abort_request."""

    rid: Identifier = None
    abort_all: bool | None = None
