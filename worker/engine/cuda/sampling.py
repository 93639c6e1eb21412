"""Choice of tokens on the GPU: the pass itself has chosen greedily; requests that want otherwise are sampled anew."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from worker.engine.batch import ForwardBatch, RowAdmission
from worker.engine.cuda.passes import DevicePass
from worker.engine.sampler import sample
from worker.engine.sampling_table import SamplingTable
from worker.layers.cuda.ops import CudaHead
from worker.models.config import ModelConfig


class CudaSampling:
    """Keeps each row's sampling state. Batches of plain greedy requests cost nothing here."""

    def __init__(
        self, config: ModelConfig, max_rows: int, head: CudaHead, next_tokens: torch.Tensor, device: torch.device
    ) -> None:
        self._table = SamplingTable(vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids, device=device)
        self._head = head
        self._next_tokens = next_tokens
        self._plain = np.ones(max_rows, np.bool_)  # by row: greedy, nothing penalised, nothing held back

    def admit(self, admissions: Iterable[RowAdmission]) -> None:
        """Set up rows; what they held before is void."""
        for admission in admissions:
            sampling = admission.sampling
            plain = sampling.greedy and not sampling.has_penalties and sampling.min_new_tokens == 0
            self._plain[admission.row] = plain
            if not plain:
                self._table.admit((admission,))

    def choose(self, batch: ForwardBatch, work: DevicePass) -> torch.Tensor:
        """Token ids int32 [S] of the pass; where `work` chose otherwise, the next-token table is set right."""
        rows = batch.rows[work.sequences]
        special = np.flatnonzero(~self._plain[rows])
        if not len(special):
            return work.token_ids
        chosen = rows[special]
        at = torch.from_numpy(special).to(work.token_ids.device)
        logits = self._head.latest(len(rows)).index_select(0, at)
        tokens = sample(logits, self._table.batch(chosen))
        self._table.record(chosen, tokens)
        tokens = tokens.to(torch.int32).where(work.token_ids.index_select(0, at) >= 0, -1)
        outcome = work.token_ids.index_copy(0, at, tokens)
        self._next_tokens.index_copy_(0, work.sampled_rows.index_select(0, at).long(), tokens)
        return outcome
