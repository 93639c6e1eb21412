"""A native request (SGLang's /generate, the offline engine's) taken apart into sequences, and its answer objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.server.answers import Answer
from worker.server.errors import RequestFault
from worker.server.fields import MAX_PROMPTS
from worker.server.prompts import Ask
from worker.server.sampling import SamplingRules, copies
from worker.server.schemas import GenerateBody, NativeSampling, Prompts


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """The prompts of one native request. `single`: the client gave one prompt, not a list."""

    prompts: Prompts
    single: bool
    param: str  # the field they came from

    @classmethod
    def of(cls, body: GenerateBody) -> NativeBatch:
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
            wanted = copies(rules.for_native(wish, at), n)
            length_param = f"{at}.max_new_tokens" if wish.max_new_tokens is not None else None
            asks += [Ask(input_ids, sampling, param, wish.stream_interval, length_param) for sampling in wanted]
        return asks, n

    def rids(self, body: GenerateBody, n: int) -> list[str] | None:
        """The ids of the sequences if the client gave a list of ids. Raises RequestFault if they do not fit."""
        if not isinstance(body.rid, list):
            return None
        given = [rid for rid in body.rid if rid is not None]
        if len(given) != len(self.prompts) or len(set(given)) != len(given):
            raise RequestFault(400, "rid must hold one id for each prompt, all different.", param="rid")
        return given if n == 1 else [f"{rid}_{j}" for rid in given for j in range(n)]

    def _wishes(self, body: GenerateBody) -> list[tuple[NativeSampling, str]]:
        """Each prompt's parameters, and where in the body they stand."""
        given = body.sampling_params
        if not isinstance(given, list):
            return [(given or NativeSampling(), "sampling_params")] * len(self.prompts)
        if len(given) != len(self.prompts):
            text = f"sampling_params has {len(given)} entries for {len(self.prompts)} prompts."
            raise RequestFault(400, text, param="sampling_params")
        return [(wish, f"sampling_params[{i}]") for i, wish in enumerate(given)]


def native_object(answer: Answer, now_s: float, weight_version: str, *, new_only: bool = False) -> dict[str, object]:
    """SGLang's answer object: text, where texts are made, and ids; all so far, or those that nobody has read yet."""
    ids = answer.output_ids[answer.read_tokens :] if new_only else answer.output_ids
    new_text = answer.read_new_text()
    text = {"text": new_text if new_only else answer.text} if answer.pipeline.makes_text else {}
    meta_info = answer.meta_info(now_s) | {"weight_version": weight_version}
    return text | {"output_ids": ids, "meta_info": meta_info}
