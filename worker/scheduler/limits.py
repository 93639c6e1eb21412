"""What one replica can take: bounds resolved from settings and runner, and the refusal of what can never fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.errors import UserError
from worker.config import WorkerSettings
from worker.engine.batch import RunnerInfo
from worker.scheduler.constants import (
    CPU_CHUNK_TOKENS,
    GPU_CHUNK_TOKENS,
    GPU_SHARED_TOKENS,
    IN_BATCH_SHARED_TOKENS,
    MIN_OUTPUT_ROOM_TOKENS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one replica, in tokens unless named otherwise."""

    page_size: int
    context_len: int
    max_total_num_tokens: int  # size of the KV pool
    max_req_len: int  # of prompt and outputs of one request, plus one
    max_req_input_len: int
    max_running_requests: int
    max_prefill_tokens: int
    chunked_prefill_size: int | None  # None = prompts are computed whole
    prefill_max_requests: int | None  # requests whose prompt one step computes
    shared_tokens: int  # a request waits for another that computes so many tokens of its prompt, in whole pages

    def refusal(self, prompt_len: int) -> str | None:
        """Why a prompt of this length can never be served, or None."""
        if prompt_len <= self.max_req_input_len:
            return None
        if self.context_len <= self.max_total_num_tokens:
            what = f"the context length is {self.context_len}"
        else:
            what = f"the KV pool holds {self.max_total_num_tokens}"
        return f"The prompt has {prompt_len} tokens, but at most {self.max_req_input_len} can be served: {what}."

    def max_new_tokens(self, asked: int | None, prompt_len: int) -> int:
        """Outputs allowed. They fit the pool and the context together with the prompt."""
        room = max(self.max_req_len - prompt_len - 1, 0)
        return room if asked is None else min(asked, room)


def resolve_limits(settings: WorkerSettings, info: RunnerInfo) -> Limits:
    """Combine settings and runner. Raises UserError if no request could ever be served."""
    pool = info.num_pages * info.page_size
    if info.embedding_size:  # nothing follows a prompt
        max_req_len = max_req_input_len = min(info.context_len, pool - 1)
    else:
        max_req_len = min(info.context_len - 1, pool - 1)
        max_req_input_len = max_req_len - MIN_OUTPUT_ROOM_TOKENS
    if max_req_input_len < 1:
        raise UserError(
            f"A KV pool of {pool} tokens with a context of {info.context_len} serves no request; "
            "raise --max-total-tokens, --mem-fraction-static or --context-length."
        )
    return Limits(
        page_size=info.page_size,
        context_len=info.context_len,
        max_total_num_tokens=pool,
        max_req_len=max_req_len,
        max_req_input_len=max_req_input_len,
        max_running_requests=min(settings.max_running_requests or info.max_rows, info.max_rows),
        max_prefill_tokens=settings.max_prefill_tokens,
        chunked_prefill_size=_chunk_tokens(settings.chunked_prefill_size, info),
        prefill_max_requests=settings.prefill_max_requests,
        shared_tokens=_shared_tokens(info),
    )


def differences(settings: WorkerSettings, limits: Limits) -> Iterator[str]:
    """A sentence for each setting that cannot be had as it was asked for, with what is used in its place."""
    tokens, requests = settings.max_total_tokens, settings.max_running_requests
    if tokens is not None and tokens - limits.max_total_num_tokens >= limits.page_size:
        yield f"--max-total-tokens {tokens} is more than memory holds; {limits.max_total_num_tokens} is used."
    if requests is not None and requests > limits.max_running_requests:
        yield f"--max-running-requests {requests} is above its bound; {limits.max_running_requests} is used."
    if settings.disable_radix_cache and settings.schedule_policy in ("lpm", "dfs-weight"):
        yield f"--schedule-policy {settings.schedule_policy} needs the prefix cache, which is off; fcfs is used."


def _shared_tokens(info: RunnerInfo) -> int:
    wanted = IN_BATCH_SHARED_TOKENS if info.device == "cpu" else GPU_SHARED_TOKENS
    return -(-wanted // info.page_size) * info.page_size


def _chunk_tokens(asked: int | None, info: RunnerInfo) -> int | None:
    if asked == -1:
        return None
    if asked is None:
        default = CPU_CHUNK_TOKENS if info.device == "cpu" else GPU_CHUNK_TOKENS
        return max(default // info.page_size, 1) * info.page_size
    if asked % info.page_size:
        raise UserError(
            f"--chunked-prefill-size {asked} must be a multiple of the page size {info.page_size}; change one of them."
        )
    return asked
