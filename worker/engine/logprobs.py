"""Log-probabilities of tokens, of the best ones beside them, and of listed ones: plain torch, on any device.

They are those of the model's own distribution, log_softmax of the raw logits: what OpenAI's API reports, and the same
for prompt and answer. Temperature, filters, penalties, biases and masks do not show in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from worker.engine.batch import ForwardBatch, ScoreRequest, Scores

_CHUNK_TOKENS = 256  # of a prompt whose logits exist at once


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Scores of n tokens where they were computed; `requests` say whose they are, in order."""

    requests: tuple[ScoreRequest, ...]
    chosen: torch.Tensor  # fp32 [n]
    top_ids: torch.Tensor  # int64 [n, most that is asked for]
    top: torch.Tensor  # fp32, aligned with top_ids
    listed: tuple[torch.Tensor, ...]  # fp32 [tokens of the request, its token_ids], for each request

    def fetch(self) -> ScoredTokens:
        """The same on the host, in pinned memory, once the stream has got there. For results of a GPU."""
        return ScoredTokens(
            self.requests,
            pinned(self.chosen),
            pinned(self.top_ids),
            pinned(self.top),
            tuple(pinned(values) for values in self.listed),
        )

    def split(self) -> list[Scores]:
        """What each request gets. Tensors must be on the host and filled."""
        chosen, top_ids, top = self.chosen.numpy(), self.top_ids.numpy().astype(np.int32), self.top.numpy()
        parts, start = [], 0
        for request, listed in zip(self.requests, self.listed, strict=True):
            rows, best = slice(start, start + request.num_tokens), slice(0, request.top)
            parts.append(Scores(chosen[rows], top_ids[rows, best], top[rows, best], listed.numpy()))
            start = rows.stop
        return parts


def sampled_requests(batch: ForwardBatch) -> tuple[ScoreRequest, ...]:
    """Those of sampled tokens."""
    return tuple(request for request in batch.score_requests if request.targets is None)


def prompt_requests(batch: ForwardBatch) -> tuple[ScoreRequest, ...]:
    """Those of prompt tokens."""
    return tuple(request for request in batch.score_requests if request.targets is not None)


def score(logits: torch.Tensor, targets: torch.Tensor, requests: Sequence[ScoreRequest]) -> ScoredTokens:
    """logits [n, vocab], targets int64 [n] (-1 where nothing was sampled) -> scores of the targets."""
    logits = logits.float()
    total = logits.logsumexp(dim=-1, keepdim=True)
    best_values, best_ids = logits.topk(min(max(request.top for request in requests), logits.shape[1]), dim=-1)
    listed, start = [], 0
    for request in requests:
        rows = slice(start, start + request.num_tokens)
        ids = torch.tensor(request.token_ids, dtype=torch.int64, device=logits.device)
        listed.append(logits[rows].index_select(1, ids) - total[rows])
        start = rows.stop
    chosen = logits.gather(1, targets.clamp_min(0).unsqueeze(1)) - total
    return ScoredTokens(tuple(requests), chosen.squeeze(1), best_ids, best_values - total, tuple(listed))


def score_prompt(
    request: ScoreRequest,
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    first_token: int,
) -> ScoredTokens:
    """Scores of prompt tokens. `hidden` [T, hidden size] are the pass's final states, those of the request's sequence
    from `first_token` on; `logits_of` turns some of them into logits."""
    assert request.targets is not None
    start = first_token + request.first
    targets = torch.tensor(request.targets, dtype=torch.int64, device=hidden.device)
    parts = []
    for at in range(0, len(targets), _CHUNK_TOKENS):
        wanted = targets[at : at + _CHUNK_TOKENS]
        part = ScoreRequest(request.index, at, np.empty(len(wanted), np.int32), request.top, request.token_ids)
        parts.append(score(logits_of(hidden[start + at : start + at + len(wanted)]), wanted, (part,)))
    return ScoredTokens(
        (request,),
        torch.cat([part.chosen for part in parts]),
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.top for part in parts]),
        (torch.cat([part.listed[0] for part in parts]),),
    )


def in_order(batch: ForwardBatch, scored: Sequence[ScoredTokens]) -> tuple[Scores, ...]:
    """The scores of all of a batch's requests, in its order."""
    found = {
        id(request): scores for each in scored for request, scores in zip(each.requests, each.split(), strict=True)
    }
    return tuple(found[id(request)] for request in batch.score_requests)


def pinned(values: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory of the host, there once the stream has got there."""
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
