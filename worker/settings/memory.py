"""How much the replica holds, which requests run, and in which order."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import model_validator

from common.settings import Settings, option
from common.settings.types import TokenCount

_option = partial(option, category="Memory and scheduling")

_PRIORITY_POLICIES = ("fcfs", "lof", "priority")


class MemorySettings(Settings):
    """Memory and scheduling."""

    mem_fraction_static: float | None = _option(
        None, "(weights + KV pool) / GPU memory; without it a rule by GPU size", gt=0, lt=1
    )
    max_total_tokens: TokenCount | None = _option(
        None, "KV pool size in tokens; without it from memory", aliases=["max-total-num-tokens"], ge=16
    )
    max_running_requests: int | None = _option(None, "bound on running requests", ge=1)
    max_queued_requests: int | None = _option(None, "bound on waiting requests; more get 503", ge=1)
    chunked_prefill_size: TokenCount | None = _option(
        None, "prompt tokens a step computes at most; -1 = no chunks", ge=-1
    )
    max_prefill_tokens: TokenCount = _option(16384, "prompt tokens of one prefill batch", ge=1)
    prefill_max_requests: int | None = _option(None, "requests of one prefill batch", ge=1)
    enable_mixed_chunk: bool = _option(True, "prefill chunks and decodes share a step")
    page_size: int | None = _option(None, "tokens in a KV page; without it 1 on CPU, 16 on a GPU", ge=1)
    disable_radix_cache: bool = _option(False, "no prefix reuse")
    radix_eviction_policy: Literal["lru", "lfu", "slru", "priority"] = _option(
        "lru", "which cached prefix goes first when the pool is full"
    )

    schedule_policy: Literal["fcfs", "lpm", "dfs-weight", "lof", "random", "priority"] = _option(
        "fcfs", "order of the waiting queue"
    )
    schedule_conservativeness: Annotated[float, Ge(0)] | Literal["auto"] = _option(
        1.0, "scales the output a running request is expected to still need; auto = learned from outputs that ended"
    )
    retraction_policy: Literal["length", "priority"] = _option(
        "length", "which running request gives up its memory first when the pool is full"
    )
    enable_priority_scheduling: bool = _option(False, "honour the requests' field `priority`")
    schedule_low_priority_values_first: bool = _option(False, "a lower priority value is more urgent")
    priority_scheduling_preemption_threshold: int = _option(
        10, "a waiting request displaces running ones whose priority differs by more than this", ge=0, le=2**32
    )
    disable_priority_preemption: bool = _option(False, "urgent requests displace no running ones")
    default_priority_value: int | None = _option(
        None, "priority of requests that name none; without it they are the least urgent", ge=-(2**31), le=2**31 - 1
    )
    abort_on_priority_when_disabled: bool = _option(
        False, "refuse requests with a priority while --enable-priority-scheduling is off"
    )

    enable_dynamic_chunking: bool = _option(
        False, "adapt the chunk size to pipeline stages", not_built="set --chunked-prefill-size instead"
    )
    swa_full_tokens_ratio: float = _option(
        0.8, "share of the pool for sliding-window layers", not_built="leave it out, there is one pool"
    )
    num_continuous_decode_steps: int = _option(
        1, "decode steps for each scheduling", not_built="leave it out, steps overlap with scheduling"
    )
    scheduler_recv_interval: int = _option(
        1, "steps between two looks at the queue of arrivals", not_built="leave it out, looking costs little"
    )
    enable_prefill_delayer: bool = _option(
        False, "hold prefills back until ranks agree", not_built="it serves DP attention only, leave it out"
    )
    prefill_delayer_max_delay_passes: int = _option(30, "longest delay in steps", not_built="leave it out")
    prefill_delayer_max_delay_ms: float = _option(5000, "longest delay in milliseconds", not_built="leave it out")

    @property
    def schedules_by_priority(self) -> bool:
        """Whether the queue honours priorities. `--schedule-policy priority` is fcfs that does."""
        return self.enable_priority_scheduling or self.schedule_policy == "priority"

    @model_validator(mode="after")
    def _check_memory(self) -> MemorySettings:
        chunk, page = self.chunked_prefill_size, self.page_size
        if chunk == 0:
            raise ValueError("--chunked-prefill-size must be positive, or -1 for no chunks.")
        if chunk is not None and chunk > 0 and page is not None and chunk % page:
            raise ValueError(
                f"--chunked-prefill-size {chunk} must be a multiple of --page-size {page}; change one of the two."
            )
        return self

    @model_validator(mode="after")
    def _check_priority(self) -> MemorySettings:
        policy, enabled = self.schedule_policy, self.enable_priority_scheduling
        if enabled and policy not in _PRIORITY_POLICIES:
            raise ValueError(
                f"--enable-priority-scheduling does not go with --schedule-policy {policy}; "
                f"use one of {', '.join(_PRIORITY_POLICIES)}."
            )
        if not enabled and self.retraction_policy == "priority":
            raise ValueError(
                "--retraction-policy priority needs --enable-priority-scheduling; add it, or leave the policy out."
            )
        return self
