"""What a request asked for -> SamplingParams. Order of strength: request > generation_config.json > constants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError

from common.errors import UserError
from worker.ipc.messages import SchedulerReady
from worker.sampling_params import TOP_K_ALL, SamplingParams
from worker.server.errors import RequestFault, from_validation
from worker.server.fields import SEED_RANGE
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


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """Turns sampling fields into SamplingParams for one model."""

    defaults: SamplingDefaults
    limits: SchedulerReady

    def for_completion(self, request: CompletionRequest) -> SamplingParams:
        """/v1/completions: 16 tokens unless it says otherwise."""
        limit = request.max_tokens or COMPLETION_MAX_TOKENS
        return self._params(request, _Lengths(limit, request.min_tokens, request.seed))

    def for_chat(self, request: ChatRequest) -> SamplingParams:
        """/v1/chat/completions: up to the context limit unless it says otherwise."""
        limit = request.max_completion_tokens or request.max_tokens
        return self._params(request, _Lengths(limit, request.min_tokens, request.seed))

    def for_native(self, request: NativeSampling, at: str = "sampling_params") -> SamplingParams:
        """`sampling_params` of /generate: 128 tokens unless it says otherwise; null means up to the context limit."""
        said = "max_new_tokens" in request.model_fields_set
        limit = request.max_new_tokens if said else NATIVE_MAX_NEW_TOKENS
        least, seed = request.min_new_tokens, request.sampling_seed
        return self._params(request, _Lengths(limit, least, seed, "max_new_tokens", "min_new_tokens", f"{at}."))

    def _params(self, fields: SamplingFields, own: _Lengths) -> SamplingParams:
        own.check()
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
