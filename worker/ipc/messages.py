"""Everything that crosses between a replica's frontend and its scheduler. Tagged msgspec structs; nothing is pickled.

Frontend -> scheduler: FrontendMessage. Scheduler -> frontend: SchedulerMessage. The scheduler sends one StepOutput per
step with the news of all requests.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from worker.sampling_params import SamplingParams
from worker.token_ids import TOKEN_BYTES, pack_tokens

# --- frontend -> scheduler -------------------------------------------------------------------------------------------


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Start one sequence. Its prompt is non-empty and inside the vocabulary; `rid` is unique among live requests.

    The prompt stands in `input_ids`, or in `packed_ids` as int32 bytes: so it travels, since a scheduler that makes
    lists of every prompt's ids spends a third of its time on it. It reads `prompt_len` and `prompt_key` only.
    """

    rid: str
    input_ids: list[int] = []
    packed_ids: bytes = b""
    sampling: SamplingParams
    priority: int | None = None  # what the client asked for; the scheduler knows which way it counts
    extra_key: str | None = None  # separates prefix-cache namespaces (cache salt, adapter)
    traced: bool = False  # tell its times

    @property
    def prompt_len(self) -> int:
        return len(self.input_ids) or len(self.packed_ids) // TOKEN_BYTES

    @property
    def prompt_key(self) -> bytes:
        """The prompt as int32 bytes."""
        return self.packed_ids or pack_tokens(self.input_ids)

    def packed(self) -> GenerateRequest:
        """The same, ready to travel."""
        return msgspec.structs.replace(self, input_ids=[], packed_ids=self.prompt_key)


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Drop a request wherever it is. Unknown rids are ignored. The scheduler answers with finish kind 'abort'."""

    rid: str


class AbortAll(msgspec.Struct, frozen=True, kw_only=True, tag="abort_all"):
    """Drop every request."""


class StopMatched(msgspec.Struct, frozen=True, kw_only=True, tag="stop_matched"):
    """The frontend found a stop string: end `rid` normally. Only the first `num_output_tokens` outputs are cached.

    The frontend has already told its client; the scheduler sends nothing more for this rid.
    """

    rid: str
    num_output_tokens: int


class FlushCache(msgspec.Struct, frozen=True, kw_only=True, tag="flush_cache"):
    """Empty the prefix cache. Answered by CallReply(ok=False) while requests run or wait."""

    call_id: int


class GetLoad(msgspec.Struct, frozen=True, kw_only=True, tag="get_load"):
    """Ask for a LoadReport with this call_id."""

    call_id: int


class GetHotPrefixes(msgspec.Struct, frozen=True, kw_only=True, tag="get_hot_prefixes"):
    """Ask for HotPrefixes with this call_id: those hit most, with at most `max_tokens` different tokens together."""

    call_id: int
    max_tokens: int


class PauseGeneration(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    """Compute nothing until ContinueGeneration; new requests wait. Those that run keep their place in the KV pool, or
    with `retract` give it up and wait at the front of the queue. Answered by CallReply."""

    call_id: int
    retract: bool = False


class ContinueGeneration(msgspec.Struct, frozen=True, kw_only=True, tag="continue"):
    """End a pause. Answered by CallReply."""

    call_id: int


class UpdateWeights(msgspec.Struct, frozen=True, kw_only=True, tag="update_weights"):
    """Compute with the weights in `model_path`, of the same model, as soon as no request is half way. They are loaded
    while requests run; then new ones wait until those that have begun end, for `drain_timeout_s` at most, or with
    `abort_all` all are aborted. Answered by WeightsUpdated, or by CallReply(ok=False) with nothing changed."""

    call_id: int = 0  # whoever sends it has its own
    model_path: str
    weight_version: str | None = None  # None: as it was
    abort_all: bool = False
    drain_timeout_s: float | None = None  # None: as long as it takes


MAX_PROFILE_STEPS = 1000  # all that is recorded stays in memory until it is written


class StartProfile(msgspec.Struct, frozen=True, kw_only=True, tag="start_profile"):
    """Record the next `num_steps` steps, or fewer if StopProfile comes before, to a new file in `output_dir`. Answered
    by CallReply; its message is the file's path. `activities`: CPU, GPU; none: all there are."""

    call_id: int = 0  # whoever sends it has its own
    output_dir: str
    prefix: str
    num_steps: int
    activities: list[str] = []
    record_shapes: bool = False
    with_stack: bool = False


class StopProfile(msgspec.Struct, frozen=True, kw_only=True, tag="stop_profile"):
    """Write what was recorded. Answered by CallReply with the file's path, when it is there."""

    call_id: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Leave the loop after this step; running requests are dropped."""


SchedulerCall = FlushCache | GetLoad | GetHotPrefixes | PauseGeneration | ContinueGeneration
ProfileCall = StartProfile | StopProfile
FrontendMessage = (
    GenerateRequest | AbortRequest | AbortAll | StopMatched | SchedulerCall | UpdateWeights | ProfileCall | Shutdown
)

# --- scheduler -> frontend -------------------------------------------------------------------------------------------


class FinishReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a sequence ended. `matched` is the stop token id, for kind 'stop'; None: its grammar was complete. `status`,
    `message` and `param`, the request's field at fault, belong to 'abort'."""

    kind: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    status: int = 200
    message: str = ""
    param: str | None = None


class TokenScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one place: of the token that stands there, of the best tokens (best first), and of the ids
    that the request lists. As in `worker.engine.batch.Scores`."""

    logprob: float
    top: list[tuple[int, float]]
    listed: list[float]


class RequestTimes(msgspec.Struct, frozen=True, gc=False):
    """When the scheduler got a request, first admitted it, had its first token, and told this; seconds of the monotonic
    clock, which all processes of a machine share. 0: not yet."""

    arrived_s: float
    admitted_s: float
    first_token_s: float
    told_s: float


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """News of one request: tokens sampled since its last delta, and its end if it ended.

    A stop token (EOS or stop_token_ids) is included in `token_ids` and counted in `completion_tokens`.
    """

    rid: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int  # prompt tokens served from the prefix cache at first admission
    completion_tokens: int
    finish: FinishReason | None = None
    queue_time_s: float = 0.0  # waiting before first admission
    num_retractions: int = 0
    scores: list[TokenScore] = []  # of `token_ids`, if the request asks for log-probabilities
    prompt_scores: list[TokenScore] = []  # with the first token: of the prompt, from the position asked for
    times: RequestTimes | None = None  # of a traced request
    vector: bytes = b""  # an embedding model's answer, float32, not normalised


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """All news of one step.

    Sequence `rids[i]` got one token, `tokens[i]`, goes on, and nothing else about it has changed since its last delta:
    most news are such, and as two lists they cost a fraction. They come before those in `deltas`. A sequence's first
    token, also after a retraction, and its last news are always deltas.
    """

    deltas: list[TokenDelta] = []
    rids: list[str] = []
    tokens: list[int] = []


# Upper bounds of the scheduler's histograms: seconds, and sequences.
STEP_TIME_BOUNDS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
BATCH_SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024)


class SchedulerTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a scheduler counts for /metrics alone, from the process start. Counts of histograms are by bucket."""

    preempted_requests: int = 0
    retracted_prompt_tokens: int = 0
    retracted_output_tokens: int = 0
    computed_prompt_tokens: int = 0  # prompt tokens of prefill chunks, those of retracted requests again
    graph_decode_steps: int = 0  # steps with decodes that a captured CUDA graph computed
    eager_decode_steps: int = 0
    prefill_steps: int = 0  # steps with prefill chunks only
    step_time_counts: list[int] = []
    step_time_sum_s: float = 0.0
    batch_size_counts: list[int] = []  # sequences in a step
    batch_size_sum: float = 0.0
    last_decode_in_graph: bool = False
    decode_context_tokens: int = 0  # of all running requests, now
    retracted_waiting: int = 0  # retracted requests that wait, now
    cpu_s: float = 0.0  # of the scheduler process
    schedule_conservativeness: float = 1.0  # in force now
    learns_conservativeness: bool = False  # --schedule-conservativeness auto


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """The scheduler's state in numbers; what /v1/loads, /metrics and the gateway read. Token counts, not bytes.

    num_used_tokens = pool - free - evictable. Counters (`*_total`) grow from the process start.
    """

    call_id: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    num_evictable_tokens: int
    num_free_tokens: int
    max_total_num_tokens: int
    num_waiting_tokens: int  # prompt tokens of waiting requests (uncached part unknown until matched)
    token_usage: float
    gen_throughput: float  # tokens/s over the last decode interval, 0 when idle
    cache_hit_rate: float  # cached / prompt tokens over all admissions so far
    new_token_ratio: float
    max_running_requests: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generation_tokens_total: int
    retracted_requests_total: int
    finished_requests_total: int
    aborted_requests_total: int
    steps_total: int
    prefill_s_total: float  # seconds in which steps with prefill chunks ran
    scheduler: SchedulerTotals = SchedulerTotals()


class CacheStored(msgspec.Struct, frozen=True, tag="stored"):
    """Blocks of one sequence, after `parent` (None: at its start), came into the prefix cache. `tokens`: their ids as
    int32 bytes."""

    blocks: list[int]
    parent: int | None
    tokens: bytes
    namespace: str | None = None


class CacheRemoved(msgspec.Struct, frozen=True, tag="removed"):
    """Blocks left the prefix cache."""

    blocks: list[int]


class CacheCleared(msgspec.Struct, frozen=True, tag="cleared"):
    """The prefix cache was emptied."""


CacheChange = CacheStored | CacheRemoved | CacheCleared


class CacheChanges(msgspec.Struct, frozen=True, kw_only=True, tag="cache"):
    """What one step changed in the prefix cache, in order. Sent with --kv-events-config only, before the step's news:
    who has an answer can count on its blocks being known."""

    changes: list[CacheChange]


class HotPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A cached prefix that is asked for. `tokens`: its ids as int32 bytes."""

    tokens: bytes
    hits: int


class HotPrefixes(msgspec.Struct, frozen=True, kw_only=True, tag="hot_prefixes"):
    """Answer to GetHotPrefixes, the hottest first."""

    call_id: int
    prefixes: list[HotPrefix]


class CallReply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """Answer to a call that asks for no facts. If not `ok`, the rest is what its HTTP answer says."""

    call_id: int
    ok: bool
    message: str = ""
    status: int = 400
    param: str | None = None


class WeightsUpdated(msgspec.Struct, frozen=True, kw_only=True, tag="weights_updated"):
    """Answer to UpdateWeights. All news before it are of the old weights, all after it of the new ones.
    `num_held_back`: requests that waited for them."""

    call_id: int
    model_path: str
    weight_version: str | None
    num_held_back: int


class ModelFound(msgspec.Struct, frozen=True, kw_only=True, tag="model_found"):
    """Sent once, before the weights are loaded: the directory with the model, so that the frontend can load its
    tokenizer meanwhile. Converting or downloading, if needed, is done by then."""

    path: str


class SchedulerReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the model is loaded: what the frontend needs to validate requests."""

    vocab_size: int
    context_len: int
    max_total_num_tokens: int
    max_req_input_len: int  # longest prompt that can ever be admitted
    max_running_requests: int
    page_size: int
    eos_token_ids: list[int]
    device: str
    dtype: str
    weight_bytes: int
    kv_pool_bytes: int
    architectures: list[str]
    available_memory_bytes: int = 0  # left on the device beside weights, pool and graphs
    has_logits: bool = True  # False: no log-probabilities and no structured output
    embedding_size: int = 0  # numbers in an embedding; 0: the model generates text
    in_batch_shared_tokens: int = 0  # so long a beginning is computed once for prompts that meet; 0: not known


class SchedulerFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Sent instead of, or after, SchedulerReady when the scheduler cannot go on. `user_fault`: exit code 2."""

    message: str
    user_fault: bool


CallAnswer = LoadReport | HotPrefixes | CallReply | WeightsUpdated
SchedulerMessage = StepOutput | CallAnswer | CacheChanges | ModelFound | SchedulerReady | SchedulerFailed
