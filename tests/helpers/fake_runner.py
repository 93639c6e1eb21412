"""A runner without a model that distrusts its scheduler.

It keeps a page table and a KV store like a real one. What it stores for a token depends on the whole sequence up to it,
and each pass checks that every sequence still finds exactly its own past in its pages. The token it samples is a
function of the whole sequence, the weights in use and the request's seed, so `expected_outputs` knows it beforehand.
What was computed by other weights is as wrong as another sequence's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np

from common.errors import UserError
from worker.engine.batch import ForwardBatch, RowAdmission, RunnerInfo, StepFailed, StepResult
from worker.sampling_params import SamplingParams

_MODULUS = 2**61 - 1
EMPTY = -1


def runner_info(
    *,
    num_pages: int = 64,
    page_size: int = 1,
    max_rows: int = 8,
    context_len: int = 256,
    vocab_size: int = 50,
    eos_token_ids: tuple[int, ...] = (0,),
    overlaps: bool = False,
) -> RunnerInfo:
    """A small runner's description."""
    return RunnerInfo(
        device="cpu",
        dtype="float32",
        vocab_size=vocab_size,
        context_len=context_len,
        num_pages=num_pages,
        page_size=page_size,
        max_rows=max_rows,
        eos_token_ids=eos_token_ids,
        architectures=("Fake",),
        weight_bytes=1000,
        kv_bytes_per_token=8,
        available_memory_bytes=2**30,
        overlaps=overlaps,
    )


def chain(past: int, token: int) -> int:
    """What the KV cache holds for `token` after a sequence whose last entry is `past` (at the start, the weights)."""
    return (past * 1_000_003 + token + 1) % _MODULUS


def next_token(last: int, sampling: SamplingParams, seed: int, num_outputs: int, info: RunnerInfo) -> int:
    """The token sampled after the sequence that ends with KV entry `last` and has `num_outputs` outputs."""
    token = (last ^ (seed * 7919)) % info.vocab_size
    if num_outputs < sampling.min_new_tokens:
        masked = {*info.eos_token_ids, *sampling.stop_token_ids}
        while token in masked:
            token = (token + 1) % info.vocab_size
    return token


def expected_outputs(
    prompt: Sequence[int],
    sampling: SamplingParams,
    seed: int,
    info: RunnerInfo,
    max_new_tokens: int,
    weights: int = 0,
) -> list[int]:
    """The tokens a request gets, whatever else runs."""
    last = weights
    for token in prompt:
        last = chain(last, token)
    outputs: list[int] = []
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(info.eos_token_ids))
    while len(outputs) < max_new_tokens:
        token = next_token(last, sampling, seed, len(outputs), info)
        outputs.append(token)
        if token in stops and len(outputs) > sampling.min_new_tokens:
            break
        last = chain(last, token)
    return outputs


class _Pending:
    def __init__(self, runner: FakeRunner, batch: ForwardBatch) -> None:
        self._runner = runner
        self.batch = batch
        self.outcome: StepResult | StepFailed | None = None

    def result(self) -> StepResult:
        self._runner.compute_until(self)
        assert self.outcome is not None
        if isinstance(self.outcome, StepFailed):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True)
class FakeWeights:
    """Implements NewWeights."""

    runner: FakeRunner
    number: int

    def use(self) -> None:
        self.runner.take(self.number)


class FakeRunner:
    """Implements ModelRunner. With `info.overlaps` a pass is computed when its result is asked for, else at launch.

    `launch_faults` and `result_faults` are ids of steps that fail; a step that fails late leaves garbage in the KV
    store. `broken_seeds` are seeds of requests that sample -1.

    Other weights are numbers, and so are their paths. They can be loaded as soon as `may_load` is set.
    """

    def __init__(self, info: RunnerInfo) -> None:
        self._info = info
        width = -(-info.context_len // info.page_size)
        self._table = np.zeros((info.max_rows, width), np.int64)
        num_slots = (info.num_pages + 1) * info.page_size
        self._tokens = np.full(num_slots, EMPTY, np.int64)
        self._entries = np.full(num_slots, EMPTY, np.int64)
        self._rows: list[RowAdmission | None] = [None] * info.max_rows
        self._next = [EMPTY] * info.max_rows
        self._num_outputs = [0] * info.max_rows
        self._spoiled: set[int] = set()  # rows whose last step failed; a step launched before that was known still runs
        self._queue: deque[_Pending] = deque()
        self.launch_faults: set[int] = set()
        self.result_faults: set[int] = set()
        self.broken_seeds: set[int] = set()
        self.batches: list[ForwardBatch] = []
        self.weights = 0
        self.may_load = Event()
        self.may_load.set()

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def launch(self, batch: ForwardBatch) -> _Pending:
        self.batches.append(batch)
        if batch.step_id in self.launch_faults:
            raise StepFailed("launch fault", advice="try less")
        pending = _Pending(self, batch)
        self._queue.append(pending)
        if not self._info.overlaps:
            self.compute_until(pending)
        return pending

    def load_weights(self, model_path: str) -> FakeWeights:
        assert self.may_load.wait(30)
        if not model_path.isdecimal():
            raise UserError(f"{model_path} is no number.")
        return FakeWeights(self, int(model_path))

    def take(self, weights: int) -> None:
        """Compute with others from now on."""
        assert not self._queue, "weights change while a pass is in flight"
        self.weights = weights

    def close(self) -> None:
        self._queue.clear()

    def compute_until(self, wanted: _Pending) -> None:
        """Compute launched passes in order, up to `wanted`."""
        while wanted.outcome is None:
            pending = self._queue.popleft()
            pending.outcome = self._compute(pending.batch)

    def _compute(self, batch: ForwardBatch) -> StepResult | StepFailed:
        for row, index, page in batch.page_writes.tolist():
            assert 1 <= page <= self._info.num_pages, f"page {page} does not exist"
            self._table[row, index] = page
        for admission in batch.admissions:
            self._rows[admission.row] = admission
            self._num_outputs[admission.row] = len(admission.output_ids)
            self._spoiled.discard(admission.row)
        slots = [self._slots(batch, index) for index in range(len(batch.rows))]
        self._check_writes(batch, slots)
        if batch.step_id in self.result_faults:
            for index, own in enumerate(slots):
                self._entries[own[-int(batch.query_lens[index]) :]] = EMPTY
            self._spoiled.update(batch.rows.tolist())
            return StepFailed("result fault", advice="try less")
        sampled = [self._run(batch, index, own) for index, own in enumerate(slots)]
        return StepResult(np.array(sampled, np.int32))

    def _slots(self, batch: ForwardBatch, index: int) -> np.ndarray:
        positions = np.arange(batch.seq_lens[index])
        pages = self._table[batch.rows[index], positions // self._info.page_size]
        return pages * self._info.page_size + positions % self._info.page_size

    def _check_writes(self, batch: ForwardBatch, slots: list[np.ndarray]) -> None:
        assert len(set(batch.rows.tolist())) == len(batch.rows), "a row occurs twice in a batch"
        used = np.concatenate(slots)
        written = np.concatenate([own[-int(n) :] for own, n in zip(slots, batch.query_lens, strict=True)])
        counts = np.bincount(used, minlength=len(self._tokens))
        assert (counts[written] == 1).all(), "a slot is written that another position of the batch uses"

    def _run(self, batch: ForwardBatch, index: int, slots: np.ndarray) -> int:
        row, query_len = int(batch.rows[index]), int(batch.query_lens[index])
        if row in self._spoiled:
            return EMPTY
        past = self._check_past(row, slots[:-query_len])
        for slot, token in zip(slots[-query_len:].tolist(), self._inputs(batch, index), strict=True):
            assert 0 <= token < self._info.vocab_size, f"row {row} computes the token {token}"
            past = chain(past, token)
            self._tokens[slot], self._entries[slot] = token, past
        return self._sample(row, past) if batch.samples[index] else EMPTY

    def _check_past(self, row: int, slots: np.ndarray) -> int:
        past = self.weights
        for position, slot in enumerate(slots.tolist()):
            past = chain(past, int(self._tokens[slot]))
            assert past == self._entries[slot], f"row {row}: the page of position {position} holds something else"
        return past

    def _inputs(self, batch: ForwardBatch, index: int) -> list[int]:
        if index < batch.num_decode:
            return [self._next[int(batch.rows[index])]]
        start = int(batch.query_lens[batch.num_decode : index].sum())
        return batch.prefill_ids[start : start + int(batch.query_lens[index])].tolist()

    def _sample(self, row: int, last: int) -> int:
        admission = self._rows[row]
        assert admission is not None, f"row {row} was never admitted"
        token = next_token(last, admission.sampling, admission.seed, self._num_outputs[row], self._info)
        self._num_outputs[row] += 1
        self._next[row] = token
        return EMPTY if admission.seed in self.broken_seeds else token
