"""How a request wants its tokens chosen and when it wants to stop. Validated by the frontend only."""

from __future__ import annotations

from typing import Literal

import msgspec

GREEDY_TEMPERATURE = 1e-6  # at or below it sampling is argmax
TOP_K_ALL = -1


class LogprobsAsked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which log-probabilities a request wants beside its tokens: of each token itself, of the `top` best at its place
    (best first), and of `token_ids`. For all outputs, and for the prompt's tokens from position `prompt_from` on (at
    least 1: nothing precedes the first token); None: for none of the prompt."""

    top: int = 0
    token_ids: tuple[int, ...] = ()
    prompt_from: int | None = None


class GrammarAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer must match. `text`: the schema as JSON, the regular expression, the grammar, the tag as JSON;
    empty for kind "json", any JSON object. `param`: the field of the request that it came from, for error messages."""

    kind: Literal["json", "json_schema", "regex", "ebnf", "structural_tag"]
    text: str
    param: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and stopping of one sequence; ranges as in the server's parameter table.

    `max_new_tokens` None means: up to the context limit (the scheduler resolves it); 0: the prompt is computed, and
    nothing follows. `stop` strings and `stop_regex` are matched on text by the frontend, `stop_token_ids` and EOS by
    the scheduler. `seed` None means: the scheduler draws one.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    seed: int | None = None
    logprobs: LogprobsAsked | None = None
    logit_bias: dict[int, float] = {}
    stop_regex: tuple[str, ...] = ()
    grammar: GrammarAsked | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def adjusts_logits(self) -> bool:
        """Whether the model's own logits are changed before a token is chosen."""
        return bool(self.has_penalties or self.min_new_tokens or self.logit_bias or self.grammar)

    @property
    def grammar_param(self) -> str | None:
        """The request's field that the grammar came from."""
        return None if self.grammar is None else self.grammar.param
