"""Tokens out of a step's news, in whichever of its two forms they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worker.ipc.messages import StepOutput


def tokens_of(output: StepOutput) -> Iterator[tuple[str, Sequence[int]]]:
    """(rid, its new tokens) of each request in the news."""
    yield from ((rid, (token,)) for rid, token in zip(output.rids, output.tokens, strict=True))
    yield from ((delta.rid, delta.token_ids) for delta in output.deltas)
