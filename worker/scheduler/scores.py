"""Log-probabilities in the scheduler: which ones a step is asked for, and where its answers go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from worker.engine.batch import Bools, Int32s, ScoreRequest, Scores, StepResult
from worker.ipc.messages import TokenScore
from worker.scheduler.rows import Int64s, RequestTable

if TYPE_CHECKING:
    from worker.scheduler.planner import Plan
    from worker.scheduler.prefill import PrefillChunk


def score_requests(
    table: RequestTable, rows: Int64s, query_lens: Int32s, samples: Bools, chunks: Sequence[PrefillChunk]
) -> tuple[ScoreRequest, ...]:
    """What a step must score: the token it samples for each request that asks, and the prompt tokens that follow the
    places its chunks compute."""
    if not table.num_scored:
        return ()
    wanted = table.scored[rows]
    if not wanted.any():
        return ()
    asked: list[ScoreRequest] = []
    num_decode = len(rows) - len(chunks)
    for index in wanted.nonzero()[0].tolist():
        logprobs = table.request(int(rows[index])).sampling.logprobs
        assert logprobs is not None
        if index >= num_decode and (prompt := _of_prompt(index, chunks[index - num_decode])) is not None:
            asked.append(prompt)
        if samples[index]:
            last = int(query_lens[index]) - 1
            asked.append(ScoreRequest(index, last, None, logprobs.top, logprobs.token_ids))
    return tuple(asked)


def _of_prompt(index: int, chunk: PrefillChunk) -> ScoreRequest | None:
    """The prompt's tokens behind a chunk's places, as far as they are asked for."""
    request = chunk.request
    asked, following = request.sampling.logprobs, request.next_prompt_score
    if asked is None or following is None:
        return None
    first = max(following, chunk.start + 1)
    end = min(chunk.end + 1, request.prompt_len)
    if first >= end:
        return None
    return ScoreRequest(index, first - 1 - chunk.start, request.fill_ids[first:end], asked.top, asked.token_ids)


def keep_scores(plan: Plan, result: StepResult, live: Bools, table: RequestTable) -> dict[int, TokenScore]:
    """Give a step's scores of prompts to the requests that are still there; returns those of sampled tokens by row."""
    batch, sampled = plan.batch, {}
    for asked, scores in zip(batch.score_requests, result.scores, strict=True):
        if not live[asked.index]:
            continue
        row = int(batch.rows[asked.index])
        lines = token_scores(scores)
        if asked.targets is None:
            sampled[row] = lines[0]
        else:
            start = int(batch.seq_lens[asked.index] - batch.query_lens[asked.index])
            table.request(row).add_prompt_scores(start + asked.first + 1, lines)
    return sampled


def token_scores(scores: Scores) -> list[TokenScore]:
    """One message for each token."""
    best = zip(scores.top_ids.tolist(), scores.top.tolist(), strict=True)
    return [
        TokenScore(chosen, list(zip(ids, values, strict=True)), listed)
        for chosen, (ids, values), listed in zip(scores.chosen.tolist(), best, scores.listed.tolist(), strict=True)
    ]
