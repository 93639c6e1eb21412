"""Choice of tokens on the GPU. The pass itself has chosen greedily; what other requests want is put in its place.

Random requests are drawn by one kernel without any wait. Those that change the logits take the way of
worker/engine/sampler.py, which copies small tensors to the GPU and so waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
import torch

from worker.engine.batch import ForwardBatch, RowAdmission, TokenMasks
from worker.engine.cuda.passes import DevicePass, Int64s
from worker.engine.cuda.staging import Staging
from worker.engine.noise import uniform
from worker.engine.sampler import sample
from worker.engine.sampling_table import Masked, SamplingTable
from worker.layers.cuda.ops import CudaHead
from worker.layers.cuda.sample import sample_into
from worker.models.config import ModelConfig

_STAGED_INTS = 1 << 14
_BELOW_1 = np.nextafter(np.float32(1), np.float32(0))


class _Kind(IntEnum):
    """How a row's tokens are chosen."""

    GREEDY = 0
    RANDOM = 1  # drawn, nothing else
    SPECIAL = 2  # changes the logits: penalties, biases, ids held back, a grammar's mask


class CudaSampling:
    """Keeps each row's sampling state. Batches of greedy requests cost nothing here."""

    def __init__(
        self, config: ModelConfig, max_rows: int, head: CudaHead, next_tokens: torch.Tensor, device: torch.device
    ) -> None:
        self._special = SamplingTable(vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids, device=device)
        self._vocab_size = config.vocab_size
        self._head = head
        self._next_tokens = next_tokens
        self._staging = Staging(_STAGED_INTS, device)
        self._kind = np.zeros(max_rows, np.int8)
        self._seed = [0] * max_rows
        self._num_generated = np.zeros(max_rows, np.int64)
        self._wishes = np.zeros((max_rows, 4), np.float32)  # temperature, top_p, min_p and room for the uniform number
        self._top_k = np.zeros(max_rows, np.int32)

    def admit(self, admissions: Iterable[RowAdmission]) -> None:
        """Set up rows; what they held before is void."""
        for admission in admissions:
            row, sampling = admission.row, admission.sampling
            if sampling.adjusts_logits:
                self._kind[row] = _Kind.SPECIAL
                self._special.admit((admission,))
                continue
            self._kind[row] = _Kind.GREEDY if sampling.greedy else _Kind.RANDOM
            self._seed[row] = admission.seed
            self._num_generated[row] = len(admission.output_ids)
            self._wishes[row] = sampling.temperature, sampling.top_p, sampling.min_p, 0.0
            self._top_k[row] = sampling.top_k if 0 < sampling.top_k < self._vocab_size else self._vocab_size

    def choose(self, batch: ForwardBatch, work: DevicePass) -> torch.Tensor:
        """Token ids int32 [S] of the pass, as the requests want them; the next-token table holds the same."""
        rows = batch.rows[work.sequences]
        kinds = self._kind[rows]
        if not kinds.any():
            return work.token_ids
        logits = self._head.latest(len(rows))
        self._draw(rows, np.flatnonzero(kinds == _Kind.RANDOM), logits, work)
        self._sample_special(batch, np.flatnonzero(kinds == _Kind.SPECIAL), logits, work)
        return work.token_ids

    def _draw(self, rows: np.ndarray, at: Int64s, logits: torch.Tensor, work: DevicePass) -> None:
        if not len(at):
            return
        chosen = rows[at]
        wishes = self._wishes[chosen]
        draws = [
            uniform(self._seed[row], n) for row, n in zip(chosen, self._num_generated[chosen].tolist(), strict=True)
        ]
        wishes[:, 3] = np.minimum(np.array(draws, np.float32), _BELOW_1)
        self._num_generated[chosen] += 1
        upload = self._staging.begin(8 * len(at) + 64)
        try:
            where, top_k = upload.add(at.astype(np.int32)), upload.add(self._top_k[chosen])
            wanted = upload.add(wishes.view(np.int32).ravel()).view(torch.float32)
            upload.send()
        finally:
            self._staging.end()
        sample_into(logits, where, wanted, top_k, work.sampled_rows, work.token_ids, self._next_tokens)

    def _sample_special(self, batch: ForwardBatch, at: Int64s, logits: torch.Tensor, work: DevicePass) -> None:
        if not len(at):
            return
        sequences = work.sequences[at]
        chosen = batch.rows[sequences]
        where = torch.from_numpy(at).to(logits.device)
        masked = None if batch.masks is None else self._masked(batch.masks, sequences, logits.device)
        tokens = sample(logits.index_select(0, where), self._special.batch(chosen, masked))
        self._special.record(chosen, tokens)
        fresh = tokens.to(torch.int32).where(work.token_ids.index_select(0, where) >= 0, -1)
        work.token_ids.index_copy_(0, where, fresh)
        self._next_tokens.index_copy_(0, work.sampled_rows.index_select(0, where).long(), fresh)

    def _masked(self, masks: TokenMasks, sequences: Int64s, device: torch.device) -> Masked | None:
        """`sequences` are those sampled here; all that have a mask are among them."""
        place_of = {sequence: place for place, sequence in enumerate(sequences.tolist())}
        places = [place_of[index] for index in masks.indices.tolist()]
        return Masked.of(places, masks.allowed, vocab_size=self._vocab_size, device=device)
