"""One sequence being answered: its text and tokens so far, its numbers, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.ipc.messages import FinishReason, GenerateRequest, TokenDelta, TokenScore
from worker.server.errors import RequestFault
from worker.server.served_weights import ServedWeights
from worker.server.text import Pipeline


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is new of an answer since it was last read. Endpoints translate chunks, and nothing else, into what their
    clients get."""

    index: int
    first: bool
    text: str
    token_ids: list[int]
    scores: list[TokenScore]  # of `token_ids`, if asked for
    finish: FinishReason | None


@dataclass(slots=True)
class Answer:
    """Live state of one sequence. `take` is fed by whoever receives the scheduler's news, nobody else changes it."""

    id: str  # the client's name for it; `request.rid` is ours
    request: GenerateRequest
    index: int  # among the sequences of its client request
    pipeline: Pipeline
    started_s: float
    weights: ServedWeights
    parts: list[str] = field(default_factory=list)  # the text in the pieces it came in
    output_ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)  # of `output_ids`, if asked for
    prompt_scores: list[TokenScore] = field(default_factory=list)
    finish: FinishReason | None = None
    last: TokenDelta | None = None  # latest news
    told_version: str | None = None  # of the weights in use when the first news came: all of it is by those
    request_id: str = ""  # of the client's HTTP request
    streamed: bool = False
    first_s: float = 0.0  # when its first token came
    last_s: float = 0.0  # when its latest did
    read_parts: int = 0  # how much its reader has had
    read_tokens: int = 0
    read_begun: bool = False
    interval_tokens: int | None = None  # per stream event, if not as the replica's settings say

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.parts)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.input_ids)

    @property
    def cached_tokens(self) -> int:
        return self.last.cached_tokens if self.last is not None else 0

    @property
    def vector(self) -> bytes:
        """What an embedding model answered, float32."""
        return self.last.vector if self.last is not None else b""

    @property
    def queue_time_s(self) -> float:
        return self.last.queue_time_s if self.last is not None else 0.0

    @property
    def unread_tokens(self) -> int:
        return len(self.output_ids) - self.read_tokens

    def take(self, delta: TokenDelta, now_s: float) -> None:
        """Add news. A stop string in it ends the answer before the tokens behind it."""
        if self.told_version is None:
            self.told_version = self.weights.version
        self.last = delta
        self.prompt_scores += delta.prompt_scores
        num_tokens = self._push(delta.token_ids, delta.finish, now_s)
        self.scores += delta.scores[:num_tokens]

    def take_token(self, token: int, now_s: float) -> None:
        """Add one token; all else is as in the last delta."""
        self._push([token], None, now_s)

    def _push(self, token_ids: list[int], finish: FinishReason | None, now_s: float) -> int:
        """Returns how many of the tokens count."""
        piece = self.pipeline.push(token_ids, finish)
        if piece.text:
            self.parts.append(piece.text)
        self.output_ids += token_ids[: piece.num_tokens]
        self.finish = piece.finish
        self.last_s = now_s
        return piece.num_tokens

    def abort(self, status: int, message: str) -> None:
        """End it from our side."""
        self.finish = FinishReason(kind="abort", status=status, message=message)

    @property
    def has_something_to_say(self) -> bool:
        """Whether `read` would give text, or ids where no texts are made, or the end. Tokens alone may be the beginning
        of a character or of a stop string."""
        if self.finish is not None:
            return True
        return len(self.parts) > self.read_parts if self.pipeline.makes_text else self.unread_tokens > 0

    def read(self) -> Chunk:
        """What nobody has read yet."""
        start, self.read_tokens = self.read_tokens, len(self.output_ids)
        text = "".join(self.parts[self.read_parts :])
        self.read_parts = len(self.parts)
        first, self.read_begun = not self.read_begun, True
        return Chunk(self.index, first, text, self.output_ids[start:], self.scores[start:], self.finish)

    def fault(self) -> RequestFault | None:
        """What an aborted answer tells its client."""
        if self.finish is None or self.finish.kind != "abort":
            return None
        status = self.finish.status if self.finish.status >= 400 else 500
        return RequestFault(status, self.finish.message or "The request was aborted.", param=self.finish.param)

    def meta_info(self, now_s: float) -> dict[str, object]:
        """SGLang's meta_info of a native answer."""
        info: dict[str, object] = {
            "id": self.id,
            "finish_reason": finish_object(self.finish, len(self.output_ids)),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.output_ids),
            "cached_tokens": self.cached_tokens,
            "num_retractions": self.last.num_retractions if self.last is not None else 0,
            "weight_version": self.weights.version if self.told_version is None else self.told_version,
        }
        if self.finish is not None:
            info["e2e_latency"] = now_s - self.started_s
            info["queue_time"] = self.queue_time_s
        return info


def finish_object(finish: FinishReason | None, completion_tokens: int) -> dict[str, object] | None:
    """SGLang's finish_reason object; None while the answer goes on."""
    if finish is None:
        return None
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.kind == "length":
        return {"type": "length", "length": completion_tokens}
    return {"type": "abort", "message": finish.message, "status_code": finish.status}


def first_fault(answers: Sequence[Answer]) -> RequestFault | None:
    """The fault of the first answer that has one."""
    return next((fault for answer in answers if (fault := answer.fault()) is not None), None)
