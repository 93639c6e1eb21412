"""What a request asked for -> SamplingParams.

Order of strength: request > --preferred-sampling-params > generation_config.json > constants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError

from common.errors import UserError
from worker.config import WorkerSettings
from worker.ipc.messages import SchedulerReady
from worker.sampling_params import TOP_K_ALL, LogprobsAsked, SamplingParams
from worker.server.errors import RequestFault, from_validation
from worker.server.fields import SEED_RANGE
from worker.server.grammar import GrammarRules
from worker.server.schemas import ChatRequest, CompletionRequest, NativeSampling, SamplingFields

NATIVE_MAX_NEW_TOKENS = 128
COMPLETION_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a request gets that does not say."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def load(cls, folder: Path) -> SamplingDefaults:
        """From generation_config.json in `folder`; constants where it is silent or missing. Raises UserError."""
        file = folder / "generation_config.json"
        if not file.is_file():
            return cls()
        try:
            given = json.loads(file.read_text())
            names = [name for name in cls.__dataclass_fields__ if given.get(name) is not None]
            values = {name: given[name] for name in names}
            if values.get("top_k") == 0:  # Transformers' word for all tokens
                values["top_k"] = TOP_K_ALL
            SamplingFields.model_validate(values)
        except ValidationError as error:
            raise UserError(f"{file}: {from_validation(error)} Mend it or use --sampling-defaults openai.") from None
        except (ValueError, OSError, AttributeError) as error:
            raise UserError(f"Cannot read {file} ({error}); mend it or use --sampling-defaults openai.") from None
        return cls(**values)


def preferred_sampling(given: Mapping[str, Any]) -> NativeSampling:
    """What --preferred-sampling-params holds: fields as in `sampling_params` of /generate. Raises UserError."""
    try:
        preferred = NativeSampling.model_validate(dict(given))
    except ValidationError as error:
        raise UserError(f"--preferred-sampling-params: {from_validation(error)}") from None
    if preferred.n is not None:
        raise UserError("--preferred-sampling-params: n is for each request to say; leave it out.")
    return preferred


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """Turns sampling fields into SamplingParams for one model. `has_text`: there is a tokenizer, so that stop strings
    can be found."""

    defaults: SamplingDefaults
    limits: SchedulerReady
    preferred: NativeSampling = NativeSampling()
    has_text: bool = True
    grammars: GrammarRules = GrammarRules(None)

    @classmethod
    def of(cls, settings: WorkerSettings, defaults: SamplingDefaults, limits: SchedulerReady) -> SamplingRules:
        """The rules that the settings ask for. Raises UserError."""
        preferred = preferred_sampling(settings.preferred_sampling_params or {})
        has_text = not settings.skip_tokenizer_init
        return cls(defaults, limits, preferred, has_text, GrammarRules(_obstacle_to_grammars(settings, limits)))

    def for_completion(self, request: CompletionRequest) -> SamplingParams:
        """/v1/completions: 16 tokens unless it says otherwise."""
        limit = _given(request.max_tokens, self.preferred.max_new_tokens or COMPLETION_MAX_TOKENS)
        if limit == 0 and not request.echo:
            raise RequestFault(400, "max_tokens: must be at least 1, or 0 together with echo.", param="max_tokens")
        if request.best_of is not None:
            self._check_best_of(request, request.best_of)
        logprobs = None
        if request.logprobs is not None:
            logprobs = LogprobsAsked(top=request.logprobs, prompt_from=1 if request.echo else None)
        elif request.num_made > request.num_kept:
            logprobs = LogprobsAsked()  # to choose by
        return self._params(request, _Lengths(limit, request.min_tokens, request.seed), logprobs)

    def for_chat(self, request: ChatRequest) -> SamplingParams:
        """/v1/chat/completions: up to the context limit unless it says otherwise."""
        if request.max_tokens == 0:
            raise RequestFault(400, "max_tokens: must be at least 1.", param="max_tokens")
        limit = request.max_completion_tokens or request.max_tokens or self.preferred.max_new_tokens
        if request.top_logprobs and not request.logprobs:
            raise RequestFault(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        logprobs = LogprobsAsked(top=request.top_logprobs or 0) if request.logprobs else None
        return self._params(request, _Lengths(limit, request.min_tokens, request.seed), logprobs)

    def for_native(
        self, request: NativeSampling, at: str = "sampling_params", logprobs: LogprobsAsked | None = None
    ) -> SamplingParams:
        """`sampling_params` of /generate: 128 tokens unless it says otherwise; null means up to the context limit."""
        sayer = next((s for s in (request, self.preferred) if "max_new_tokens" in s.model_fields_set), None)
        limit = sayer.max_new_tokens if sayer is not None else NATIVE_MAX_NEW_TOKENS
        least, seed = request.min_new_tokens, request.sampling_seed
        lengths = _Lengths(limit, least, seed, "max_new_tokens", "min_new_tokens", f"{at}.")
        return self._params(request, lengths, logprobs)

    def _params(self, asked: SamplingFields, asked_lengths: _Lengths, logprobs: LogprobsAsked | None) -> SamplingParams:
        asked_lengths.check()
        self._check_logprobs(logprobs, "logprobs" if not asked_lengths.at else "return_logprob")
        fields, own = self._with_preferred(asked), asked_lengths.or_else(self.preferred)
        if not self.has_text:
            own.check_no_text(fields)
        check_token_ids(list(fields.logit_bias or {}), self.limits.vocab_size, f"{own.at}logit_bias")
        check_token_ids(fields.stop_token_ids or [], self.limits.vocab_size, f"{own.at}stop_token_ids")
        defaults = self.defaults
        return SamplingParams(
            max_new_tokens=own.limit,
            min_new_tokens=own.least or 0,
            temperature=_given(fields.temperature, defaults.temperature),
            top_p=_given(fields.top_p, defaults.top_p),
            top_k=_given(fields.top_k, defaults.top_k),
            min_p=_given(fields.min_p, defaults.min_p),
            frequency_penalty=fields.frequency_penalty or 0.0,
            presence_penalty=fields.presence_penalty or 0.0,
            repetition_penalty=_given(fields.repetition_penalty, defaults.repetition_penalty),
            stop=tuple(fields.stop or ()),
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            ignore_eos=bool(fields.ignore_eos),
            skip_special_tokens=_given(fields.skip_special_tokens, True),
            no_stop_trim=bool(fields.no_stop_trim),
            seed=None if own.seed is None else own.seed % SEED_RANGE,
            logprobs=logprobs,
            logit_bias=fields.logit_bias or {},
            stop_regex=tuple(fields.stop_regex or ()),
            grammar=self.grammars.of(fields, own.at),
        )

    def _check_best_of(self, request: CompletionRequest, best_of: int) -> None:
        if best_of < request.num_kept:
            text = f"best_of ({best_of}) is less than n ({request.num_kept})."
            raise RequestFault(400, text, param="best_of")
        if best_of > request.num_kept and request.stream:
            raise RequestFault(
                400, "best_of above n cannot be streamed: the best are known at the end.", param="best_of"
            )
        if best_of > request.num_kept and not self.limits.has_logits:
            text = "best_of: a simulated device has no probabilities to choose by."
            raise RequestFault(400, text, param="best_of")

    def _check_logprobs(self, logprobs: LogprobsAsked | None, param: str) -> None:
        if logprobs is None:
            return
        if not self.limits.has_logits:
            raise RequestFault(400, f"{param}: a simulated device has no probabilities.", param=param)
        check_token_ids(logprobs.token_ids, self.limits.vocab_size, "token_ids_logprob")
        if logprobs.top > self.limits.vocab_size:
            text = f"This model has {self.limits.vocab_size} tokens; {logprobs.top} best ones cannot be told."
            raise RequestFault(400, text, param=param)

    def _with_preferred(self, asked: SamplingFields) -> SamplingFields:
        """What was asked for, and in the fields left open what the server prefers."""
        names = [name for name in self.preferred.model_fields_set if name in SamplingFields.model_fields]
        return asked.model_copy(
            update={name: getattr(self.preferred, name) for name in names if getattr(asked, name) is None}
        )


class _Lengths(NamedTuple):
    """The fields that OpenAI and native requests spell differently, with their names for error messages."""

    limit: int | None
    least: int | None
    seed: int | None
    limit_name: str = "max_tokens"
    least_name: str = "min_tokens"
    at: str = ""

    def check(self) -> None:
        if self.limit is not None and (self.least or 0) > self.limit:
            text = f"{self.least_name} ({self.least}) is more than {self.limit_name} ({self.limit})."
            raise RequestFault(400, text, param=self.at + self.least_name)

    def check_no_text(self, fields: SamplingFields) -> None:
        """Raise RequestFault for what needs a tokenizer."""
        for name, value in (("stop", fields.stop), ("stop_regex", fields.stop_regex), (self.least_name, self.least)):
            if value:
                text = f"{self.at}{name} needs a tokenizer, and this server runs with --skip-tokenizer-init."
                raise RequestFault(400, text, param=self.at + name)

    def or_else(self, preferred: NativeSampling) -> _Lengths:
        """With what the server prefers where nothing was asked; its least number of tokens gives way to the limit."""
        least = self.least
        if least is None and preferred.min_new_tokens is not None:
            least = preferred.min_new_tokens if self.limit is None else min(preferred.min_new_tokens, self.limit)
        return self._replace(least=least, seed=_given(self.seed, preferred.sampling_seed))


def _obstacle_to_grammars(settings: WorkerSettings, limits: SchedulerReady) -> str | None:
    if not limits.has_logits:
        return "a simulated device follows no grammar"
    if settings.grammar_backend == "none":
        return "it runs with --grammar-backend none"
    if settings.skip_tokenizer_init:
        return "it runs with --skip-tokenizer-init"
    return None


def copies(sampling: SamplingParams, n: int) -> list[SamplingParams]:
    """`n` parameter sets for `n` answers to one prompt: a given seed moves on by one, so that they differ."""
    if sampling.seed is None:
        return [sampling] * n
    return [msgspec.structs.replace(sampling, seed=(sampling.seed + i) % SEED_RANGE) for i in range(n)]


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise RequestFault unless every id is in the vocabulary."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(i for i in token_ids if not 0 <= i < vocab_size)
        text = f"{param} holds {wrong}, but token ids of this model are 0 to {vocab_size - 1}."
        raise RequestFault(400, text, param=param)


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
