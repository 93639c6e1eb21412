"""Chooses tokens from logits: greedy, temperature, top-k, top-p, min-p, penalties. Plain torch, on any device.

Order: repetition, frequency and presence penalty -> ids held back by min_new_tokens -> temperature -> filters, each on
the unfiltered distribution as in SGLang's joint form -> draw.
"""

from __future__ import annotations

import torch

from worker.engine.noise import exponential_noise
from worker.engine.sampling_table import Penalties, RandomRows, SamplingBatch

# How many of the best candidates are sorted before the whole vocabulary is: sorting all costs milliseconds a row.
_NUM_CANDIDATES = 1024


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """logits [N, vocab] -> token ids int64 [N]. May change `logits`."""
    logits = logits.float()
    if batch.penalties is not None:
        _penalise(logits, batch.penalties)
    for i, ids in batch.banned:
        logits[i].index_fill_(0, ids, -torch.inf)
    tokens = logits.argmax(dim=-1)
    if batch.random is not None:
        tokens[batch.random.members] = _draw(logits[batch.random.members], batch.random)
    return tokens


def _penalise(logits: torch.Tensor, penalties: Penalties) -> None:
    """Over generated tokens only: repetition divides positive logits and multiplies negative ones, frequency takes off
    per occurrence, presence once."""
    rows = logits[penalties.members]
    seen = penalties.counts > 0
    scaled = torch.where(rows > 0, rows / penalties.repetition, rows * penalties.repetition)
    rows = torch.where(seen, scaled, rows)
    rows -= penalties.counts * penalties.frequency + seen * penalties.presence
    logits[penalties.members] = rows


def _draw(logits: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """logits fp32 [M, vocab] -> int64 [M]."""
    probs = torch.softmax(logits / rows.temperature, dim=-1)
    if rows.min_p is not None:
        probs = probs.where(probs >= rows.min_p * probs.amax(dim=-1, keepdim=True), 0.0)
    if rows.top_k is None and rows.top_p is None:
        every = torch.arange(probs.shape[1], device=probs.device).unsqueeze(0)
        return (probs / exponential_noise(rows.keys, every)).argmax(dim=-1)
    candidates, indices = _best(probs, rows)
    kept = candidates.where(_inside(candidates, rows), 0.0)
    choice = (kept / exponential_noise(rows.keys, indices)).argmax(dim=-1, keepdim=True)
    return indices.gather(1, choice).squeeze(1)


def _best(probs: torch.Tensor, rows: RandomRows) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely candidates in descending order, as many as the filters can possibly keep."""
    vocab = probs.shape[1]
    if rows.max_top_k <= _NUM_CANDIDATES:
        return probs.topk(rows.max_top_k, dim=-1)
    values, indices = probs.topk(min(_NUM_CANDIDATES, vocab), dim=-1)
    if _inside(values, rows)[:, -1].any():  # some filter reaches further down than these candidates
        return probs.sort(dim=-1, descending=True)
    return values, indices


def _inside(candidates: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """Which of the descending candidates pass: rank below top_k, and mass before them not above top_p."""
    inside = torch.ones_like(candidates, dtype=torch.bool)
    if rows.top_k is not None:
        inside &= torch.arange(candidates.shape[1], device=candidates.device) < rows.top_k
    if rows.top_p is not None:
        inside &= candidates.cumsum(dim=-1) - candidates <= rows.top_p
    return inside
