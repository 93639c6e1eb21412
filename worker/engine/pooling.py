"""One vector for each text, from the final hidden states of its tokens. Plain torch, on any device."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from worker.engine import inputs
from worker.engine.batch import ForwardBatch, RunnerInfo
from worker.models.config import LlamaConfig, ModelConfig
from worker.models.embedding import Pooling
from worker.models.transformers_config import TransformersConfig

log = logging.getLogger(__name__)


class Pooler:
    """Keeps the sums of texts that are computed in several chunks, by row of the request table. Their numbers of tokens
    are right only if nothing of them came from the prefix cache."""

    def __init__(self, pooling: Pooling, size: int, max_rows: int, device: torch.device) -> None:
        self.pooling = pooling
        self.size = size
        rows = max_rows if pooling is Pooling.MEAN else 0
        self._sums = torch.zeros((rows, size), dtype=torch.float32, device=device)

    def describe(self, info: RunnerInfo) -> RunnerInfo:
        """What the scheduler is told of the runner that pools."""
        reuses = self.pooling is Pooling.LAST
        return replace(info, has_logits=False, embedding_size=self.size, reuses_prefixes=reuses)

    def pool(self, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [T, size], the pass's final states -> fp32 [S, size], of the sequences with `samples`, in order."""
        if self.pooling is Pooling.LAST:
            return hidden.index_select(0, _on(hidden.device, inputs.sampled_tokens(batch))).float()
        ends = np.cumsum(batch.query_lens)
        for row, seq_len, length, end in zip(
            batch.rows.tolist(), batch.seq_lens.tolist(), batch.query_lens.tolist(), ends.tolist(), strict=True
        ):
            chunk = hidden[end - length : end].sum(0, dtype=torch.float32)
            self._sums[row] = chunk if seq_len == length else self._sums[row] + chunk
        rows, lens = (_on(hidden.device, values[batch.samples]) for values in (batch.rows, batch.seq_lens))
        return self._sums.index_select(0, rows) / lens.unsqueeze(1)


def _on(device: torch.device, numbers: npt.NDArray[np.integer]) -> torch.Tensor:
    """On a GPU without waiting for what its stream still has to do."""
    tensor = torch.from_numpy(numbers)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def make_pooler(config: ModelConfig, max_rows: int, device: torch.device) -> Pooler | None:
    """None for a model that generates text."""
    if config.pooling is None:
        return None
    assert isinstance(config, LlamaConfig | TransformersConfig)
    if config.pooling is Pooling.MEAN:
        log.info("The model pools by the mean, which needs every token of a text computed: no prefix is cached.")
    return Pooler(config.pooling, config.hidden_size, max_rows, device)
