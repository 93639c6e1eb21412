"""The kinds of request fields: bounded, strict about types, and clear about what this server does not do."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from worker.server.stop_patterns import check_pattern

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256  # of one stop string; this much answer may be held back
MAX_STOP_TOKEN_IDS = 64
MAX_PROMPTS = 1024  # prompts x n of one request
MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_STOP_PATTERNS = 4
MAX_PATTERN_CHARS = 256  # of a stop_regex
MAX_REGEX_CHARS = 4096
MAX_EBNF_CHARS = 2**14  # compiling may take time that grows with the third power
MAX_GRAMMAR_CHARS = 2**18  # of JSON schemas and structural tags
MAX_LISTED_LOGPROBS = 1024  # token_ids_logprob
MAX_ID_CHARS = 256
MAX_MESSAGES = 10_000
MAX_TOKENS = 2**31 - 1  # numbers of tokens stay 32-bit

SEED_RANGE = 2**63


class Body(BaseModel):
    """Base of request bodies: types are not coerced, null means default, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())


def unbuilt(*neutral: Any) -> AfterValidator:
    """Marks a field that clients may send but this server does not serve: null and `neutral` values pass."""

    def refuse(value: Any) -> None:
        if value is not None and value not in neutral:
            raise ValueError("this server does not support it")

    return AfterValidator(refuse)


Unbuilt = Annotated[Any, unbuilt(False, [], {}, "")]


def _as_stop_list(value: Any) -> Any:
    if value is not None and not isinstance(value, str | list):
        raise ValueError("must be a string or a list of strings")
    return [value] if isinstance(value, str) else value


def _usable_stops(value: list[str] | None) -> list[str] | None:
    if any(not 0 < len(text) <= MAX_STOP_CHARS for text in value or ()):
        raise ValueError(f"a stop string has 1 to {MAX_STOP_CHARS} characters")
    return value


def _top_k(value: int | None) -> int | None:
    if value is not None and value != -1 and value < 1:
        raise ValueError("must be -1 (all tokens) or at least 1")
    return value


Temperature = Annotated[float | None, Field(ge=0, allow_inf_nan=False)]
TopP = Annotated[float | None, Field(gt=0, le=1)]
TopK = Annotated[int | None, Field(le=MAX_TOKENS), AfterValidator(_top_k)]
MinP = Annotated[float | None, Field(ge=0, le=1)]
Penalty = Annotated[float | None, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float | None, Field(gt=0, le=2)]
NumNewTokens = Annotated[int | None, Field(ge=1, le=MAX_TOKENS)]
NumTokensOrNone = Annotated[int | None, Field(ge=0, le=MAX_TOKENS)]  # 0: the prompt is computed, nothing follows
MinNewTokens = Annotated[int | None, Field(ge=0, le=MAX_TOKENS)]
Stop = Annotated[
    list[str] | None,
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_as_stop_list),
    AfterValidator(_usable_stops),
]
StopTokenIds = Annotated[list[int] | None, Field(max_length=MAX_STOP_TOKEN_IDS)]
Seed = Annotated[int | None, Field(ge=-SEED_RANGE, lt=SEED_RANGE)]


def _as_biases(value: Any) -> Any:
    """JSON's keys are strings, Python's may be integers."""
    if not isinstance(value, dict):
        return value
    try:
        return {int(key): bias for key, bias in value.items()}
    except (ValueError, TypeError):
        raise ValueError("its keys must be token ids") from None


def _usable_patterns(value: list[str] | None) -> list[str] | None:
    for pattern in value or ():
        check_pattern(pattern)
    return value


LogitBias = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]] | None,
    Field(max_length=MAX_LOGIT_BIASES),
    BeforeValidator(_as_biases),
]
StopRegex = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]] | None,
    Field(max_length=MAX_STOP_PATTERNS),
    BeforeValidator(_as_stop_list),
    AfterValidator(_usable_patterns),
]
Pattern = Annotated[str | None, Field(max_length=MAX_REGEX_CHARS)]
GrammarText = Annotated[str | None, Field(max_length=MAX_EBNF_CHARS)]
JsonText = Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS)]
TopLogprobs = Annotated[int | None, Field(ge=0, le=MAX_TOP_LOGPROBS)]
Count = Annotated[int | None, Field(ge=1, le=MAX_N)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]  # without it each wrong item would become an error of its own
Identifier = Annotated[str | None, Field(min_length=1, max_length=MAX_ID_CHARS)]
Priority = Annotated[int | None, Field(ge=-(2**31), lt=2**31)]
