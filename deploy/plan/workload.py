"""The load of a plan: requests in order of arrival, any part of them at any time; from a trace, or described."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.traces import Trace
from deploy.plan.lengths import Lengths
from worker.token_ids import TOKEN_BYTES

_FIRST_TOKEN = 1  # 0 is what answers are made of
_MINUTE_S = 60.0
_PAGE_TOKENS = 16  # of described prompts: the size of their blocks
_MOST_PAGES = 1 << 16  # of one shared prefix


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. The prompt's first blocks of `block_tokens` tokens each are those of other requests that have the
    same ids; what lies behind them is its own, told from others by `own_id`. Ids are 0 to 2^30 - 2."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    block_tokens: int
    own_id: int

    def prompt_key(self) -> bytes:
        """The prompt's token ids as int32 bytes; a block is one id, over and over: only equality matters."""
        parts = [_token(2 * block) * self.block_tokens for block in self.blocks]
        own_tokens = self.prompt_tokens - len(self.blocks) * self.block_tokens
        if own_tokens > 0:
            parts.append(_token(2 * self.own_id + 1) * own_tokens)
        return b"".join(parts)[: self.prompt_tokens * TOKEN_BYTES]


class Workload(Protocol):
    """Requests over a time that begins at 0."""

    @property
    def duration_s(self) -> float: ...

    @property
    def num_requests(self) -> int:
        """In all; expected, where chance decides."""
        ...

    def asks(self, begin_s: float, end_s: float) -> Iterator[Ask]:
        """Those that arrive from `begin_s` on and before `end_s`, in order; the same ones whenever it is asked."""
        ...


class TraceWorkload:
    """A recording, `speed` times as fast, `rounds` times in a row. Each round has blocks of its own, so that no round
    finds its prompts cached because an earlier one was the same. Of requests with the same time, as in recordings that
    tell it in seconds, the shorter prompt arrives first: its body is complete sooner."""

    def __init__(self, trace: Trace, *, speed: float = 1.0, rounds: int = 1) -> None:
        self._requests = sorted(trace.requests, key=lambda request: (request.arrival_s, request.prompt_tokens))
        self._arrivals_s = [request.arrival_s / speed for request in self._requests]
        self._block_tokens = trace.block_tokens or 1
        self._num_blocks = max((max(request.blocks, default=-1) for request in trace.requests), default=-1) + 1
        self._rounds = rounds
        # The next round begins one mean gap after the last request.
        self._round_s = self._arrivals_s[-1] * (1 + 1 / max(len(self._requests) - 1, 1))

    @property
    def duration_s(self) -> float:
        return self._round_s * self._rounds

    @property
    def num_requests(self) -> int:
        return len(self._requests) * self._rounds

    def asks(self, begin_s: float, end_s: float) -> Iterator[Ask]:
        first = int(begin_s // self._round_s) if self._round_s else 0
        for round_ in range(first, self._rounds):
            start_s = round_ * self._round_s
            if start_s >= end_s:
                return
            low = bisect_left(self._arrivals_s, begin_s - start_s)
            high = bisect_left(self._arrivals_s, end_s - start_s)
            for index in range(low, high):
                yield self._ask(index, round_, start_s)

    def _ask(self, index: int, round_: int, start_s: float) -> Ask:
        request = self._requests[index]
        shift = round_ * self._num_blocks
        return Ask(
            start_s + self._arrivals_s[index],
            request.prompt_tokens,
            request.output_tokens,
            tuple(block + shift for block in request.blocks) if shift else request.blocks,
            self._block_tokens,
            round_ * len(self._requests) + index,
        )


class DescribedWorkload:
    """Independent requests (a Poisson process) whose lengths are drawn. `shared_share` of each prompt is the beginning
    of one of `prefixes` texts, all equally often."""

    def __init__(
        self,
        *,
        rate_per_s: float,
        duration_s: float,
        prompt: Lengths,
        output: Lengths,
        shared_share: float,
        prefixes: int,
        seed: int,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._duration_s = duration_s
        self._prompt = prompt
        self._output = output
        self._shared_share = shared_share
        self._prefixes = prefixes
        self._seed = seed

    @property
    def duration_s(self) -> float:
        return self._duration_s

    @property
    def num_requests(self) -> int:
        return round(self._rate_per_s * self._duration_s)

    def asks(self, begin_s: float, end_s: float) -> Iterator[Ask]:
        end_s = min(end_s, self._duration_s)
        minute = int(begin_s // _MINUTE_S)
        while minute * _MINUTE_S < end_s:
            yield from (ask for ask in self._minute(minute) if begin_s <= ask.arrival_s < end_s)
            minute += 1

    def _minute(self, minute: int) -> Iterator[Ask]:
        rng = np.random.default_rng((self._seed, minute))
        count = int(rng.poisson(self._rate_per_s * _MINUTE_S))
        arrivals_s = np.sort(rng.uniform(0.0, _MINUTE_S, count)) + minute * _MINUTE_S
        prompts, outputs = self._prompt.draw(rng, count), self._output.draw(rng, count)
        prefixes = rng.integers(self._prefixes, size=count) * _MOST_PAGES
        pages = np.minimum(prompts * self._shared_share // _PAGE_TOKENS, _MOST_PAGES).astype(np.int64)
        own_id = minute * int(4 * self._rate_per_s * _MINUTE_S + 100)  # more than a minute ever has
        columns = (arrivals_s.tolist(), prompts.tolist(), outputs.tolist(), prefixes.tolist(), pages.tolist())
        for index, (at_s, prompt, output, prefix, shared) in enumerate(zip(*columns, strict=True)):
            yield Ask(at_s, prompt, output, tuple(range(prefix, prefix + shared)), _PAGE_TOKENS, own_id + index)


def _token(number: int) -> bytes:
    return (number + _FIRST_TOKEN).to_bytes(TOKEN_BYTES, "little")
