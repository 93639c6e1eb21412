"""One request's live state in the scheduler, and the table of its legal states."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from worker.cache.prefix import CacheNode, PrefixLookup
from worker.engine.batch import Int32s
from worker.grammar.base import GrammarState
from worker.ipc.messages import TokenScore
from worker.sampling_params import SamplingParams
from worker.token_ids import TOKEN_BYTES

NO_ROW = -1


class RequestStatus(Enum):
    """Where a request is. PREFILLING: a part of its prompt is computed; RUNNING: all of it is, or is being computed."""

    WAITING = auto()
    PREFILLING = auto()
    RUNNING = auto()
    FINISHED = auto()
    ABORTED = auto()


_LEGAL: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.PREFILLING, RequestStatus.FINISHED, RequestStatus.ABORTED}),
    RequestStatus.PREFILLING: frozenset(
        {RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.FINISHED, RequestStatus.ABORTED}
    ),
    RequestStatus.RUNNING: frozenset({RequestStatus.WAITING, RequestStatus.FINISHED, RequestStatus.ABORTED}),
    RequestStatus.FINISHED: frozenset(),
    RequestStatus.ABORTED: frozenset(),
}


@dataclass(eq=False, slots=True)
class Request:
    """A sequence from arrival to its end. What changes every step, outputs and counters, lives in the request table, by
    row."""

    rid: str
    prompt_key: bytes  # prompt token ids as int32 bytes
    prompt_len: int
    sampling: SamplingParams
    seed: int
    namespace: str | None  # of the prefix cache
    max_new_tokens: int  # resolved
    arrival_s: float
    rank: int = 0  # of its priority; lower is more urgent
    arrival_index: int = 0  # counts arrivals
    turn: int = 0  # counts arrivals of its lane of the queue, which sets it
    status: RequestStatus = RequestStatus.WAITING
    row: int = NO_ROW
    node: CacheNode | None = None  # locked in the prefix cache, while the request has a row
    fill_key: bytes = field(init=False)  # what prefill must compute: prompt, and outputs before a retraction
    num_kept_outputs: int = 0  # outputs from before a retraction
    admitted: bool = False
    cached_tokens: int = 0  # found in the prefix cache at first admission
    queue_time_s: float = 0.0
    num_retractions: int = 0
    lookup: PrefixLookup | None = None  # how much of `fill_key` was cached when last asked
    grammar: GrammarState | None = None  # where its answer stands, all known outputs taken into account
    traced: bool = False
    first_token_s: float = 0.0  # of a traced request
    prompt_scores: list[TokenScore] = field(default_factory=list)  # of the prompt, from the position asked for

    def __post_init__(self) -> None:
        self.fill_key = self.prompt_key

    @property
    def fill_ids(self) -> Int32s:
        return np.frombuffer(self.fill_key, np.int32)

    @property
    def fill_len(self) -> int:
        return len(self.fill_key) // TOKEN_BYTES

    @property
    def kept_output_ids(self) -> Int32s:
        """Outputs from before a retraction."""
        return self.fill_ids[self.prompt_len :]

    @property
    def remaining_new_tokens(self) -> int:
        """Outputs still allowed when prefill is done."""
        return self.max_new_tokens - self.num_kept_outputs

    def move_to(self, status: RequestStatus) -> None:
        """Change state. An illegal transition is an AssertionError."""
        assert status in _LEGAL[self.status], f"{self.rid}: {self.status.name} -> {status.name}"
        self.status = status

    @property
    def next_prompt_score(self) -> int | None:
        """The first prompt position whose log-probability is asked for and not known; None: there is none."""
        asked = self.sampling.logprobs
        if asked is None or asked.prompt_from is None:
            return None
        position = asked.prompt_from + len(self.prompt_scores)
        return position if position < self.prompt_len else None

    @property
    def matchable_key(self) -> bytes:
        """What may be taken from the prefix cache: not the last token, which gives the next one its probabilities, nor
        what must be computed to give prompt tokens theirs."""
        position = self.next_prompt_score
        return self.fill_key[:-TOKEN_BYTES] if position is None else self.fill_key[: (position - 1) * TOKEN_BYTES]

    def add_prompt_scores(self, position: int, scores: list[TokenScore]) -> None:
        """Scores of the prompt's tokens from `position` on. Those known from before a retraction are skipped."""
        following = self.next_prompt_score
        if following is not None:
            assert position <= following, f"{self.rid}: scores of positions {following} to {position} are missing"
            self.prompt_scores += scores[following - position :]

    def refill(self, fill_key: bytes) -> None:
        """Start over after a retraction: prefill must compute the outputs too, which `fill_key` holds after the
        prompt."""
        self.fill_key = fill_key
        self.num_kept_outputs = self.fill_len - self.prompt_len
        self.lookup = None
        self.num_retractions += 1
