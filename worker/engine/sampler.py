"""Chooses tokens from logits: greedy, temperature, top-k, top-p, min-p, penalties, masks. Plain torch, on any device.

Order: repetition, frequency and presence penalty -> ids held back by min_new_tokens -> what a grammar forbids -> biases
-> temperature -> filters, each judged on the unfiltered distribution (SGLang's joint form) -> draw.
"""

from __future__ import annotations

import torch

from worker.engine.sampling_table import Penalties, RandomRows, SamplingBatch

_NUM_CANDIDATES = 1024  # the best so many are tried before a whole vocabulary is sorted, which takes milliseconds a row
_BLOCK = 256


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """logits [N, vocab] -> token ids int64 [N], -1 where logits are not finite. May change `logits`."""
    logits = logits.float()
    if batch.penalties is not None:
        _penalise(logits, batch.penalties)
    for i, ids in batch.banned:
        logits[i].index_fill_(0, ids, -torch.inf)
    if (masked := batch.masked) is not None:
        logits[masked.members] = logits[masked.members].masked_fill_(~masked.allowed, -torch.inf)
    for i, bias in batch.biases:
        logits[i] += bias
    tokens = argmax(logits)
    finite = logits.gather(1, tokens.unsqueeze(1)).squeeze(1).isfinite()  # argmax takes a NaN for the largest
    if batch.random is not None:
        members = batch.random.members
        tokens[members] = _draw(logits[members], batch.random)
    return tokens.where(finite, -1)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """int64 [N]: the first largest of each row. In two levels, because torch finds maxima ten times faster than their
    places."""
    if logits.shape[1] % _BLOCK:
        return logits.argmax(dim=-1)
    blocks = logits.view(len(logits), -1, _BLOCK)
    block = blocks.amax(dim=-1).argmax(dim=-1)
    inside = blocks[torch.arange(len(logits), device=logits.device), block].argmax(dim=-1)
    return block * _BLOCK + inside


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
    """logits fp32 [M, vocab] -> int64 [M]. What a row gets depends on nothing outside it."""
    probs = torch.softmax(logits / rows.temperature, dim=-1)
    threshold = _least_kept(probs, rows)
    if threshold is not None:
        probs = probs.where(probs >= threshold, 0.0)
    return _pick(probs, rows.uniform)


def _pick(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """int64 [M]: index i with probability weights[i] / sum, by inverting the distribution at `uniform` [M, 1].

    The index found is the first whose cumulative weight exceeds the threshold, so its own weight is not 0.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    place = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
    return place.clamp_max_(weights.shape[1] - 1)  # past the end only for weights that are not finite


def _least_kept(probs: torch.Tensor, rows: RandomRows) -> torch.Tensor | None:
    """fp32 [M, 1]: the smallest probability that passes all filters; equals of it pass too. None without filters."""
    least = None
    if rows.min_p is not None:
        least = rows.min_p * probs.amax(dim=-1, keepdim=True)
    if rows.ranked is not None:
        candidates = _best(probs, rows)
        last = candidates.where(_inside(candidates, rows), 2.0).amin(dim=-1, keepdim=True).where(rows.ranked, 0.0)
        least = last if least is None else torch.maximum(least, last)
    return least


def _best(probs: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """The highest probabilities of each row in descending order, as many as top_k and top_p can possibly keep."""
    assert rows.ranked is not None
    if rows.max_top_k <= _NUM_CANDIDATES:
        return probs.topk(rows.max_top_k, dim=-1).values
    values = probs.topk(min(_NUM_CANDIDATES, probs.shape[1]), dim=-1).values
    if bool((_inside(values, rows)[:, -1:] & rows.ranked).any()):  # some filter reaches further down
        return probs.sort(dim=-1, descending=True).values
    return values


def _inside(candidates: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """Which of the descending candidates pass: rank below top_k, and mass before them not above top_p."""
    inside = torch.ones_like(candidates, dtype=torch.bool)
    if rows.top_k is not None:
        inside &= torch.arange(candidates.shape[1], device=candidates.device) < rows.top_k
    if rows.top_p is not None:
        inside &= candidates.cumsum(dim=-1) - candidates <= rows.top_p
    return inside
