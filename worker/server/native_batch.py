"""A native request (SGLang's /generate, the offline engine's) taken apart into sequences, and its answer objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker.sampling_params import LogprobsAsked
from worker.server.answers import Answer
from worker.server.errors import RequestFault
from worker.server.fields import MAX_PROMPTS
from worker.server.logprobs import NativeLogprobs, ScoredToken, TokenBytes, scored_prompt, scored_tokens
from worker.server.prompts import Ask
from worker.server.sampling import SamplingRules, copies
from worker.server.schemas import GenerateBody, NativePrompts, NativeSampling, Prompts


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """The prompts of one native request. `single`: the client gave one prompt, not a list."""

    prompts: Prompts
    single: bool
    param: str  # the field they came from

    @classmethod
    def of(cls, body: NativePrompts) -> NativeBatch:
        """Raises RequestFault unless exactly one of text and input_ids is given."""
        if (body.text is None) == (body.input_ids is None):
            raise RequestFault(400, "Give exactly one of text and input_ids.", param="text")
        if body.text is not None:
            single = isinstance(body.text, str)
            return cls([body.text] if isinstance(body.text, str) else body.text, single, "text")
        ids = body.input_ids or []
        batch = [row for row in ids if isinstance(row, list)]
        return cls(batch or [[i for i in ids if isinstance(i, int)]], not batch, "input_ids")

    def asks(self, body: GenerateBody, encoded: Sequence[list[int]], rules: SamplingRules) -> tuple[list[Ask], int]:
        """The sequences in order, and n: how many of them each prompt has. Raises RequestFault."""
        wishes = self._wishes(body)
        counts = {wish.n or 1 for wish, _ in wishes}
        if len(counts) > 1:
            raise RequestFault(400, "n must be the same for all prompts of a batch.", param="sampling_params")
        n = counts.pop()
        if n * len(encoded) > MAX_PROMPTS:
            text = f"{len(encoded)} prompts with n={n} make more than {MAX_PROMPTS} sequences."
            raise RequestFault(400, text, param="sampling_params.n")
        asks = []
        for i, (input_ids, (wish, at)) in enumerate(zip(encoded, wishes, strict=True)):
            param = self.param if self.single else f"{self.param}[{i}]"
            logprobs = self._logprobs(body, i, len(input_ids))
            wanted = copies(rules.for_native(wish, at, logprobs), n)
            length_param = f"{at}.max_new_tokens" if wish.max_new_tokens is not None else None
            asks += [Ask(input_ids, sampling, param, wish.stream_interval, length_param) for sampling in wanted]
        return asks, n

    def rids(self, body: NativePrompts, n: int) -> list[str] | None:
        """The ids of the sequences if the client gave a list of ids. Raises RequestFault if they do not fit."""
        if not isinstance(body.rid, list):
            return None
        given = [rid for rid in body.rid if rid is not None]
        if len(given) != len(self.prompts) or len(set(given)) != len(given):
            raise RequestFault(400, "rid must hold one id for each prompt, all different.", param="rid")
        return given if n == 1 else [f"{rid}_{j}" for rid in given for j in range(n)]

    def _logprobs(self, body: GenerateBody, index: int, prompt_len: int) -> LogprobsAsked | None:
        """What one prompt's sequences shall tell. `logprob_start_len` is the first prompt token that is listed; the
        first one that has a log-probability is the one after it."""
        if not self._item(body.return_logprob, index, "return_logprob"):
            return None
        start = self._item(body.logprob_start_len, index, "logprob_start_len")
        if start is not None and start >= prompt_len:
            text = f"logprob_start_len is {start}, but the prompt has {prompt_len} tokens."
            raise RequestFault(400, text, param="logprob_start_len")
        listed: Any = body.token_ids_logprob
        if listed and any(not isinstance(item, int) for item in listed):
            listed = self._item(listed, index, "token_ids_logprob")
        return LogprobsAsked(
            top=self._item(body.top_logprobs_num, index, "top_logprobs_num") or 0,
            token_ids=tuple(listed or ()),
            prompt_from=None if start is None or start < 0 else start + 1,
        )

    def _item(self, value: Any, index: int, param: str) -> Any:
        """What a field says of one prompt: the same for all, or a list with one item for each."""
        if not isinstance(value, list):
            return value
        if len(value) != len(self.prompts):
            text = f"{param} has {len(value)} entries for {len(self.prompts)} prompts."
            raise RequestFault(400, text, param=param)
        return value[index]

    def _wishes(self, body: GenerateBody) -> list[tuple[NativeSampling, str]]:
        """Each prompt's parameters, and where in the body they stand."""
        given = body.sampling_params
        if not isinstance(given, list):
            return [(given or NativeSampling(), "sampling_params")] * len(self.prompts)
        if len(given) != len(self.prompts):
            text = f"sampling_params has {len(given)} entries for {len(self.prompts)} prompts."
            raise RequestFault(400, text, param="sampling_params")
        return [(wish, f"sampling_params[{i}]") for i, wish in enumerate(given)]


@dataclass(frozen=True, slots=True)
class NativeObjects:
    """Makes SGLang's answer objects: text, where texts are made, ids and meta_info. `bytes_of`: texts go into lists of
    log-probabilities; `new_only`: an object holds what nobody has read yet, instead of all so far; `prompt_ids`: it
    holds the prompt's token ids too."""

    bytes_of: TokenBytes | None = None
    new_only: bool = False
    prompt_ids: bool = False

    def of(self, answer: Answer, now_s: float) -> dict[str, object]:
        """Reads the answer."""
        new = answer.read()
        text, ids, scores = answer.text, [*answer.output_ids], answer.scores  # lists go on growing
        if self.new_only:
            text, ids, scores = new.text, new.token_ids, new.scores
        meta_info = answer.meta_info(now_s)
        if answer.request.sampling.logprobs is not None:
            meta_info |= self._logprobs(answer, answer.request.sampling.logprobs, scored_tokens(ids, scores), new.first)
        content: dict[str, object] = {"text": text} if answer.pipeline.makes_text else {}
        content |= {"output_ids": ids, "meta_info": meta_info}
        return content | ({"prompt_token_ids": answer.request.input_ids} if self.prompt_ids else {})

    def _logprobs(
        self, answer: Answer, asked: LogprobsAsked, output: Sequence[ScoredToken], first: bool
    ) -> dict[str, object]:
        lists = NativeLogprobs(self.bytes_of, asked.top > 0, asked.token_ids)
        prompt: Sequence[ScoredToken] = ()
        if asked.prompt_from is not None and (first or not self.new_only):
            prompt = scored_prompt(answer.request.input_ids, answer.prompt_scores)
        return lists.fields("input", prompt) | lists.fields("output", output)
