"""How a request wants its tokens chosen and when it wants to stop. Validated by the frontend only."""

from __future__ import annotations

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


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and stopping of one sequence; ranges as in the server's parameter table.

    `max_new_tokens` None means: up to the context limit (the scheduler resolves it). `stop` strings are matched on text
    by the frontend; `stop_token_ids` and EOS by the scheduler. `seed` None means: the scheduler draws one.
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

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)
