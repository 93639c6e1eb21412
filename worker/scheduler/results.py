"""What happens when a step is done: tokens to their requests, stop checks, prompts into the prefix cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from worker.cache.pool import KvPool
from worker.engine.batch import Float32s, RunnerInfo, StepFailed, StepResult
from worker.grammar.base import GrammarFault
from worker.ipc.messages import FinishReason, TokenScore
from worker.log_lines import StepFailedLine
from worker.scheduler.grammars import SlowMasks
from worker.scheduler.outbox import Outbox
from worker.scheduler.planner import Plan
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.release import Lifecycle
from worker.scheduler.request import Request
from worker.scheduler.rows import Int64s, RequestTable
from worker.scheduler.scores import keep_scores
from worker.scheduler.stats import SchedulerStats

OUT_OF_VOCABULARY = "The model produced the token id {token}, which is outside its vocabulary; its output is unusable."
STEP_FAILED = "The step that computed this request failed: {fault}"
# Kinds of token ids. A request that ignores EOS (1) minds only what is greater.
_PLAIN, _EOS, _UNUSABLE = 0, 1, 2
_LENGTH = FinishReason(kind="length")
_ANSWERED = FinishReason(kind="stop")

logger = logging.getLogger(__name__)


class ResultHandler:
    """Applies results in launch order. Rows whose request has left meanwhile are skipped."""

    def __init__(
        self,
        info: RunnerInfo,
        pool: KvPool,
        table: RequestTable,
        waiting: WaitingQueue,
        lifecycle: Lifecycle,
        outbox: Outbox,
        stats: SchedulerStats,
        masks: SlowMasks,
    ) -> None:
        self._pool = pool
        self._masks = masks
        self._table = table
        self._waiting = waiting
        self._lifecycle = lifecycle
        self._outbox = outbox
        self._stats = stats
        self._vocab_size = info.vocab_size
        self._kinds = np.full(info.vocab_size + 1, _PLAIN, np.uint8)  # by token id; the last stands for all others
        self._kinds[list(info.eos_token_ids)] = _EOS
        self._kinds[-1] = _UNUSABLE

    def handle(self, plan: Plan, result: StepResult) -> None:
        """A step succeeded."""
        batch, table = plan.batch, self._table
        live = table.live(batch.rows, plan.epochs)
        rows = batch.rows[live].astype(np.int64)
        table.computed_len[rows] = batch.seq_lens[live]
        for index in range(batch.num_decode, len(batch.rows)):
            if live[index]:
                self._lifecycle.cache_prefix(int(batch.rows[index]), int(batch.seq_lens[index]))
        used_tokens, usage = self._pool.used_tokens, self._pool.usage  # before anyone leaves
        scores = keep_scores(plan, result, live, table) if batch.score_requests else {}
        sampled = live & batch.samples
        sampled_rows = batch.rows[sampled].astype(np.int64)
        if result.vectors is not None:
            self._end_with(table.requests(sampled_rows), result.vectors[live[batch.samples]])
            return
        num_decoded = int(np.count_nonzero(sampled[: batch.num_decode]))
        self._append(sampled_rows, result.token_ids[sampled], num_decoded, scores)
        if batch.num_decode:
            self._stats.on_decode(
                running=batch.num_decode,
                used_tokens=used_tokens,
                usage=usage,
                cuda_graph=result.cuda_graph,
                queued=len(self._waiting),
            )

    def _end_with(self, requests: Sequence[Request], vectors: Float32s) -> None:
        """Requests whose answers are vectors, one each."""
        for request, vector in zip(requests, vectors, strict=True):
            self._outbox.add(request, [], 0, _ANSWERED, vector=vector.tobytes())
            self._lifecycle.finish(request, 0)

    def fail(self, plan: Plan, fault: StepFailed) -> None:
        """A step failed: its requests end, everyone else goes on."""
        table = self._table
        live = table.live(plan.batch.rows, plan.epochs)
        batch, reason = plan.batch, f"{fault} {fault.advice}".rstrip()
        logger.error("%s", StepFailedLine(batch.num_decode, len(batch.prefill_ids), int(live.sum()), reason))
        for request in table.requests(plan.batch.rows[live]):
            self._lifecycle.abort(request, 503, STEP_FAILED.format(fault=fault))
        # Whether the runner applied them is not known.
        table.rewrite(plan.batch.page_writes)

    def _append(
        self, rows: Int64s, token_ids: npt.NDArray[np.int32], num_decoded: int, scores: Mapping[int, TokenScore]
    ) -> None:
        """One new token for the request of each row, with its score by row. From `num_decoded` on it is the first after
        prefill."""
        table = self._table
        kinds = self._kinds[np.minimum(token_ids.view(np.uint32), self._vocab_size)]  # negative ids are large here
        num_outputs = table.append_outputs(rows, token_ids)
        self._stats.on_tokens(len(kinds) - int(np.count_nonzero(kinds == _UNUSABLE)))
        special = (kinds > table.ignore_eos[rows]) | (num_outputs >= table.surely_goes_on[rows])
        special[num_decoded:] = True
        plain = ~special
        self._outbox.add_tokens(table.rids[rows[plain]].tolist(), token_ids[plain].tolist())
        tokens, counts = token_ids[special].tolist(), num_outputs[special].tolist()
        for request, token, count in zip(table.requests(rows[special]), tokens, counts, strict=True):
            score = scores.get(request.row)
            self._append_special(request, token, count, () if score is None else (score,))

    def _append_special(self, request: Request, token: int, num_outputs: int, scores: Sequence[TokenScore]) -> None:
        """A new token that may end its request, or is the first that its client hears of."""
        if not 0 <= token < self._vocab_size:
            self._table.num_outputs[request.row] -= 1
            self._lifecycle.abort(request, 500, OUT_OF_VOCABULARY.format(token=token))
            return
        if not request.max_new_tokens:  # only the prompt was to be computed
            self._outbox.add(request, [], 0, _LENGTH)
            self._lifecycle.finish(request, 0)
            return
        if (grammar := request.grammar) is not None:
            try:
                grammar.accept(token)
            except GrammarFault as fault:
                self._table.num_outputs[request.row] -= 1
                self._lifecycle.abort(request, 400, str(fault), request.sampling.grammar_param)
                return
        reason = self._end_of(request, token, num_outputs)
        self._outbox.add(request, [token], num_outputs, reason, scores)
        if reason is not None:
            self._lifecycle.finish(request, num_outputs)
        elif grammar is not None and (pending := grammar.pending) is not None:
            self._masks.add(request, pending)

    def _end_of(self, request: Request, token: int, num_outputs: int) -> FinishReason | None:
        """Why a request ends with its newest token, if it does: length goes before stop tokens."""
        sampling = request.sampling
        if num_outputs >= request.max_new_tokens:
            return _LENGTH
        if request.grammar is not None and request.grammar.ended:
            return FinishReason(kind="stop", matched=token if self._kinds[token] == _EOS else None)
        if num_outputs <= sampling.min_new_tokens:
            return None
        if token in sampling.stop_token_ids or (self._kinds[token] == _EOS and not sampling.ignore_eos):
            return FinishReason(kind="stop", matched=token)
        return None
