"""Which prompts fit: the checks that need the model's size. Ids in the vocabulary, lengths in context and pool."""

from __future__ import annotations

from dataclasses import dataclass

from worker.config import WorkerSettings
from worker.ipc.messages import SchedulerReady
from worker.sampling_params import SamplingParams
from worker.server.errors import RequestFault
from worker.server.sampling import check_token_ids


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Bounds of one replica's prompts, and whether they may have a priority."""

    ready: SchedulerReady
    auto_truncate: bool
    takes_priority: bool = True

    @property
    def _most_tokens(self) -> int:
        """Of a prompt: one less than the context, if an answer follows."""
        return self.ready.context_len - (0 if self.ready.embedding_size else 1)

    def check_priority(self, priority: int | None) -> None:
        """Refuse a request with a priority where priorities mean nothing and clients shall know it."""
        if priority is not None and not self.takes_priority:
            text = "This server does not schedule by priority; send the request without the field priority."
            raise RequestFault(400, text, param="priority")

    def check_text(self, least_tokens: int, param: str) -> None:
        """Refuse a text that is too long whatever its tokens are, so that nobody encodes it."""
        if least_tokens > self._most_tokens and not self.auto_truncate:
            raise _too_long(f"at least {least_tokens}", self.ready.context_len, param)

    def fit(
        self, input_ids: list[int], sampling: SamplingParams, param: str, length_param: str | None = None
    ) -> list[int]:
        """The prompt as it may be sent to the scheduler. Raises RequestFault if it is empty, foreign or too long, and
        if it leaves no room for the answer that the client asked for in `length_param`."""
        ready = self.ready
        if not input_ids:
            raise RequestFault(400, f"{param} has no tokens; give at least one.", param=param)
        check_token_ids(input_ids, ready.vocab_size, param)
        if self.auto_truncate:
            return self._truncated(input_ids)
        num_tokens, answer = len(input_ids), sampling.max_new_tokens or 0
        if num_tokens > self._most_tokens:
            raise _too_long(str(num_tokens), ready.context_len, param)
        if num_tokens + answer > ready.context_len:
            text = (
                f"Requested token count exceeds the model's maximum context length of {ready.context_len} tokens: "
                f"{num_tokens} tokens in the prompt and {answer} for the answer make {num_tokens + answer}."
            )
            raise RequestFault(400, text, param=length_param or param, code="context_length_exceeded")
        if num_tokens > ready.max_req_input_len:
            text = (
                f"Input length ({num_tokens} tokens) exceeds the maximum allowed length "
                f"({ready.max_req_input_len} tokens)."
            )
            raise RequestFault(400, text, param=param, code="context_length_exceeded")
        return input_ids

    def _truncated(self, input_ids: list[int]) -> list[int]:
        """The beginning, as far as it fits. A text to be embedded keeps the end mark that its tokenizer gave it: the
        vector may be that token's."""
        most, last = self.ready.max_req_input_len, input_ids[-1]
        if len(input_ids) > most and self.ready.embedding_size and last in self.ready.eos_token_ids:
            return [*input_ids[: most - 1], last]
        return input_ids[:most]


def takes_priority(settings: WorkerSettings) -> bool:
    """Whether a request may name a priority. Ignored ones are refused only if asked for."""
    return settings.schedules_by_priority or not settings.abort_on_priority_when_disabled


def _too_long(tokens: str, context_len: int, param: str) -> RequestFault:
    text = f"The input ({tokens} tokens) is longer than the model's context length ({context_len} tokens)."
    return RequestFault(400, text, param=param, code="context_length_exceeded")
