"""How many tokens of a prompt a worker has cached: by the true counts that answers told, else by the length of tokens.

Three kinds of places have true counts. The end of a turn: who sends it again with more behind it finds its prompt, and
its answer if that was sent back whole. The end of a match in blocks, where prompts that begin alike part. And the
beginning that a chat template gives to all prompts of a kind, which is cached although no text is shared.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.fleet.worker import WorkerView
from gateway.kv_events.prompt_tokens import PromptTokens
from gateway.routing.extract import FIELD, MAX_TEXT_BYTES, RECORD
from gateway.routing.policy import Choice
from gateway.routing.prefix_index import BLOCK_BYTES
from gateway.routing.prices import Prices

_NEAR_BLOCKS = 1.5  # of the estimate, or of what is known already: what is further off tells of other things
_ENTRY_BYTES = 320  # of memory for one count, at most
_MAX_ROLE_BYTES = 64  # in front of a chat's first message: salt and role
_WHOLE = 2  # an answer of so many times its length, or this many tokens more, is taken for whole
_SHORT_TOKENS = 8
_RECORD = RECORD[0]
_RELIMIT_SHARE = 0.1  # change in the length of tokens that is worth telling

Value = TypeVar("Value")
Turn = tuple[int, int, float]
"""Tokens of a prompt that was answered, those of its answer, and when that was, in seconds."""
Expectation = tuple[int, int, int, int, float | None]
"""cached_tokens, prompt_tokens, start_key and end_key as in Choice; when the turn was answered that is gone on from."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt as the index sees it. `tokens`: estimated unless the client sent ids, or `exact` has them.

    `text` may be cut, `num_bytes` is the whole length; `seed`: where its chain of hashes begins.
    """

    hashes: tuple[int, ...]
    tokens: float
    block_tokens: float
    exact: PromptTokens | None = None
    text: bytes = b""
    num_bytes: int = 0
    seed: int = 0


class Recent(Generic[Value]):
    """So many values at most, the oldest out first."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max(max_entries, 1)
        self._values: OrderedDict[int, Value] = OrderedDict()
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: int, value: Value) -> None:
        """Remember; it is the newest now."""
        values = self._values
        values[key] = value
        values.move_to_end(key)
        if len(values) > self._max_entries:
            values.popitem(last=False)


class _Length:
    """Of one model's tokens, and from how many answers that was learned."""

    __slots__ = ("answers", "bytes_per_token", "told_at")

    def __init__(self, bytes_per_token: float) -> None:
        self.bytes_per_token = self.told_at = bytes_per_token
        self.answers = 0


class TokenCounts:
    """Bounded by `max_bytes`."""

    def __init__(self, max_bytes: int, prices: Prices) -> None:
        entries = max_bytes // _ENTRY_BYTES
        self._prices = prices
        self._lengths: dict[str, _Length] = {}
        # By everything before the end of a prompt, seeded with the worker's life: its turns are its own.
        self._turns = Recent[Turn](entries // 2)
        # By block that a worker holds without the next; and by the beginning of prompts of a kind, seeded likewise.
        self._tokens = Recent[int](entries // 2)

    def bytes_per_token(self, model: str) -> float:
        """Of prompt text, on average."""
        length = self._lengths.get(model)
        return self._prices.bytes_per_token if length is None else length.bytes_per_token

    def expect(self, prompt: Prompt, worker: WorkerView, known_blocks: int) -> Expectation:
        """What the worker will report as cached, if it holds so many of the prompt's blocks. Hot: it calls little."""
        text, hashes, life = prompt.text, prompt.hashes, worker.life
        begin, num_hashes = known_blocks * BLOCK_BYTES, len(hashes)
        start_key, end_key, turn, end = 0, 0, None, 0
        if text and text[-1] == _RECORD and prompt.num_bytes <= MAX_TEXT_BYTES:  # the whole of a chat
            before = hashes[-1] if num_hashes else prompt.seed
            end_key = xxh3_64_intdigest(text[num_hashes * BLOCK_BYTES :], before ^ life)
        # The last whole block of a turn is the last block held of it, so it ends with a message in the block behind.
        seed, limit = (hashes[known_blocks - 1] if begin else prompt.seed) ^ life, begin + BLOCK_BYTES - 1
        first = begin - 1 if begin else 0
        while turn is None and (end := text.rfind(RECORD, first, limit) + 1):
            turn = self._turns.get(xxh3_64_intdigest(text[begin:end], seed))
            limit = end - 1
        if begin:
            cached = self._tokens.get(hashes[known_blocks - 1])
        elif text:
            role_end = text.find(FIELD, 0, _MAX_ROLE_BYTES)
            start_key = xxh3_64_intdigest(text[: role_end if role_end > 0 else 1], seed)
            cached = self._tokens.get(start_key, 0)
        else:
            cached = 0
        if turn is not None:
            cached, total = _after(turn, end, prompt)
        else:
            if cached is None:
                cached = min(int(known_blocks * prompt.block_tokens + 0.5), max(int(prompt.tokens + 0.5) - 1, 0))
            total = cached + int(prompt.tokens - known_blocks * prompt.block_tokens + 0.5)
        page_size = worker.identity.page_size
        if page_size > 1:
            cached -= cached % page_size
        return cached, total, start_key, end_key, None if turn is None else turn[2]

    def learn(
        self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int, now_s: float
    ) -> None:
        """Remember what an answer told. Its length of tokens is learned before, by `learn_length`."""
        known, hashes, tokens = choice.known_blocks, choice.hashes, self._tokens
        if choice.end_key:
            self._turns.put(choice.end_key, (prompt_tokens, completion_tokens, now_s))
        elif known < len(hashes):
            # The last token of an answer is never computed on, so it is not cached.
            tokens.put(hashes[-1], prompt_tokens + max(completion_tokens - 1, 0))
        if choice.follows_turn:
            return  # what is cached belongs to that turn alone
        block_tokens = BLOCK_BYTES / self.bytes_per_token(choice.worker.model)
        near = _NEAR_BLOCKS * block_tokens
        if known:
            if abs(cached_tokens - choice.cached_tokens) <= near or abs(cached_tokens - known * block_tokens) <= near:
                tokens.put(hashes[known - 1], cached_tokens)
        elif cached_tokens and choice.start_key and cached_tokens <= near:
            tokens.put(choice.start_key, cached_tokens)

    def learn_length(self, model: str, num_bytes: int, tokens: int) -> bool:
        """A prompt of so many bytes had so many tokens. Returns whether the length has changed much since this was last
        said. The mean of the first answers, then one that follows slowly."""
        length = self._lengths.get(model)
        if length is None:
            length = self._lengths[model] = _Length(self._prices.bytes_per_token)
        length.answers += 1
        rate = max(1.0 / length.answers, self._prices.learning_rate)
        length.bytes_per_token += rate * (num_bytes / tokens - length.bytes_per_token)
        if abs(length.bytes_per_token / length.told_at - 1) <= _RELIMIT_SHARE:
            return False
        length.told_at = length.bytes_per_token
        return True


def _after(turn: Turn, turn_end: int, prompt: Prompt) -> tuple[int, int]:
    """(cached, prompt) tokens of a prompt whose first `turn_end` bytes were answered, the answer too if it is there."""
    turn_tokens, answer_tokens, _ = turn
    text, num_bytes = prompt.text, len(prompt.text)
    if turn_end == num_bytes:
        return turn_tokens - 1, turn_tokens
    bytes_per_token = BLOCK_BYTES / prompt.block_tokens
    answer_end = text.find(RECORD, turn_end)
    answer_bytes = (answer_end if answer_end > 0 else num_bytes) - turn_end
    cached = turn_tokens
    # What a client or a template leaves out, such as reasoning, is not there to be matched. The last token of an answer
    # is never computed on, so it is not cached.
    if answer_tokens and _WHOLE * answer_bytes >= (answer_tokens - _SHORT_TOKENS) * bytes_per_token:
        cached += answer_tokens - 1
    rest_tokens = (max(prompt.num_bytes, num_bytes) - turn_end) / bytes_per_token
    return cached, max(int(turn_tokens + rest_tokens), cached + 1)
