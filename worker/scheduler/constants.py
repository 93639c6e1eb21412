"""Numbers of the scheduling rules. They are SGLang's, under its names for them, because operators tune by those."""

from __future__ import annotations

# Share of its remaining output a running request is expected to need, at --schedule-conservativeness 1
# (SGLANG_INIT_NEW_TOKEN_RATIO).
INIT_NEW_TOKEN_RATIO = 0.7
# Floor of that share, as a part of its start (SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR).
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
# Decode steps from start to floor (SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS).
NEW_TOKEN_RATIO_DECAY_STEPS = 600
# Decode steps a retraction makes room for (SGLANG_RETRACT_DECODE_STEPS).
RETRACT_DECODE_STEPS = 20
# Output tokens of one request that admission reserves at most (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION).
CLIP_MAX_NEW_TOKENS = 4096
# Waiting requests above which lpm goes by arrival, to bound the cost of matching. SGLang's bound for lpm; ours for
# dfs-weight too.
MATCHED_MAX_WAITING = 128
# Of requests that share this many uncached tokens one goes ahead, and the others wait until it has filled the cache
# (IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD).
IN_BATCH_SHARED_TOKENS = 32
# Ours: as many for that on a GPU, where a step costs as much as hundreds of tokens of a prompt (docs/performance.md).
GPU_SHARED_TOKENS = 256
# Tokens between the longest prompt and the longest sequence (Scheduler.max_req_input_len).
MIN_OUTPUT_ROOM_TOKENS = 5

# Ours: requests that leave the queue after a waiting request's turn by arrival before it goes first.
MAX_OVERTAKEN = 64
# Ours: waiting requests that a pass passes over because another computes their start; it ends there, to bound its cost.
MAX_HELD = 512
# Rank of a request without a priority: after all that have one (SGLang: sys.maxsize).
LEAST_URGENT_RANK = 2**31
# Ours: prompt tokens a step computes without --chunked-prefill-size. A CPU computes tokens slowly, so its chunks are
# short, or running requests would stall. A GPU gets what SGLang gives 60 to 160 GiB of memory.
CPU_CHUNK_TOKENS = 128
GPU_CHUNK_TOKENS = 8192
