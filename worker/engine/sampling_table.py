"""What each row's request wants of its tokens, and what it has generated so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from worker.engine.batch import Int32s, RowAdmission
from worker.engine.noise import uniform
from worker.sampling_params import SamplingParams

_LEAST_REPETITION = 1e-6  # a division by less makes logits infinite, and probabilities no numbers


@dataclass(slots=True)
class _Row:
    """One request's sampling state. `num_generated` counts tokens sampled or about to be, retracted ones included."""

    sampling: SamplingParams
    seed: int
    num_generated: int
    counts: torch.Tensor | None  # int32 [vocab], generated tokens; None without penalties
    banned: torch.Tensor | None  # int64, ids that min_new_tokens holds back; a grammar's mask does that by itself
    bias: torch.Tensor | None  # fp32 [vocab], added to the logits


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of the sequences that have any, aligned with `members`."""

    members: torch.Tensor  # int64 [P], indices in the batch
    counts: torch.Tensor  # int32 [P, vocab]
    frequency: torch.Tensor  # fp32 [P, 1]
    presence: torch.Tensor  # fp32 [P, 1]
    repetition: torch.Tensor  # fp32 [P, 1]


@dataclass(frozen=True, slots=True)
class RandomRows:
    """The sequences that are sampled at random, aligned with `members`; a filter nobody asks for is None."""

    members: torch.Tensor  # int64 [M], indices in the batch
    uniform: torch.Tensor  # fp64 [M, 1] in [0, 1), the randomness of this token
    temperature: torch.Tensor  # fp32 [M, 1]
    top_k: torch.Tensor | None  # int64 [M, 1], vocab size = all
    max_top_k: int
    top_p: torch.Tensor | None  # fp32 [M, 1]
    min_p: torch.Tensor | None  # fp32 [M, 1]
    ranked: torch.Tensor | None  # bool [M, 1], has a top_k or top_p; None: none has


@dataclass(frozen=True, slots=True)
class Masked:
    """The sequences with a grammar."""

    members: torch.Tensor  # int64 [G], indices in the batch
    allowed: torch.Tensor  # bool [G, vocab]

    @classmethod
    def of(cls, members: Sequence[int], words: Int32s, *, vocab_size: int, device: torch.device) -> Masked | None:
        """From the bits of TokenMasks. None if there are none."""
        if not len(members):
            return None
        packed = torch.from_numpy(np.ascontiguousarray(words)).to(device)
        bits = packed.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=device) & 1
        return cls(torch.tensor(members, device=device), bits.flatten(1)[:, :vocab_size].bool())


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How N sequences are sampled in one pass."""

    banned: tuple[tuple[int, torch.Tensor], ...]  # (index in the batch, ids that must not come)
    biases: tuple[tuple[int, torch.Tensor], ...]  # (index in the batch, fp32 [vocab])
    masked: Masked | None
    penalties: Penalties | None
    random: RandomRows | None  # None: all greedy


class SamplingTable:
    """Sampling state by row. `admit` starts a row, `batch` describes a pass and advances its rows."""

    def __init__(self, *, vocab_size: int, eos_token_ids: tuple[int, ...], device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._rows: dict[int, _Row] = {}

    def admit(self, admissions: Iterable[RowAdmission]) -> None:
        """Set up rows; what they held before is void."""
        for admission in admissions:
            sampling = admission.sampling
            self._rows[admission.row] = _Row(
                sampling=sampling,
                seed=admission.seed,
                num_generated=len(admission.output_ids),
                counts=self._counts(admission.output_ids) if sampling.has_penalties else None,
                banned=self._banned(sampling) if sampling.min_new_tokens > 0 and not sampling.grammar else None,
                bias=self._bias(sampling.logit_bias) if sampling.logit_bias else None,
            )

    def batch(self, rows: Int32s, masked: Masked | None = None) -> SamplingBatch:
        """State for sampling the next token of each of `rows`, which then counts as generated."""
        states = [self._rows[row] for row in rows.tolist()]
        batch = SamplingBatch(
            banned=tuple(
                (i, s.banned)
                for i, s in enumerate(states)
                if s.banned is not None and s.num_generated < s.sampling.min_new_tokens
            ),
            biases=tuple((i, s.bias) for i, s in enumerate(states) if s.bias is not None),
            masked=masked,
            penalties=self._penalties(states),
            random=self._random(states),
        )
        for state in states:
            state.num_generated += 1
        return batch

    def record(self, rows: Int32s, token_ids: torch.Tensor) -> None:
        """Count what was sampled, for later penalties. `token_ids` int64 [N] on the table's device."""
        for i, row in enumerate(rows.tolist()):
            counts = self._rows[row].counts
            if counts is not None:
                counts[token_ids[i : i + 1]] += 1

    def _counts(self, output_ids: Iterable[int]) -> torch.Tensor:
        ids = torch.tensor(list(output_ids), dtype=torch.int64)
        return torch.bincount(ids, minlength=self._vocab_size).to(self._device, torch.int32)

    def _bias(self, biases: Mapping[int, float]) -> torch.Tensor:
        bias = torch.zeros(self._vocab_size)
        bias[torch.tensor(list(biases), dtype=torch.int64)] = torch.tensor(list(biases.values()))
        return bias.to(self._device)

    def _banned(self, sampling: SamplingParams) -> torch.Tensor | None:
        ids = sorted({*self._eos_token_ids, *sampling.stop_token_ids})
        return torch.tensor(ids, dtype=torch.int64, device=self._device) if ids else None

    def _column(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device).unsqueeze(1)

    def _penalties(self, states: list[_Row]) -> Penalties | None:
        members = [i for i, s in enumerate(states) if s.counts is not None]
        if not members:
            return None
        chosen = [states[i].sampling for i in members]
        return Penalties(
            members=torch.tensor(members, device=self._device),
            counts=torch.stack([c for s in states if (c := s.counts) is not None]),
            frequency=self._column([s.frequency_penalty for s in chosen]),
            presence=self._column([s.presence_penalty for s in chosen]),
            repetition=self._column([max(s.repetition_penalty, _LEAST_REPETITION) for s in chosen]),
        )

    def _random(self, states: list[_Row]) -> RandomRows | None:
        members = [i for i, s in enumerate(states) if not s.sampling.greedy]
        if not members:
            return None
        chosen = [states[i] for i in members]
        vocab = self._vocab_size
        top_k = [s.sampling.top_k if 0 < s.sampling.top_k < vocab else vocab for s in chosen]
        top_p = [s.sampling.top_p for s in chosen]
        min_p = [s.sampling.min_p for s in chosen]
        ranked = [k < vocab or p < 1.0 for k, p in zip(top_k, top_p, strict=True)]
        draws = [uniform(s.seed, s.num_generated) for s in chosen]
        return RandomRows(
            members=torch.tensor(members, device=self._device),
            uniform=torch.tensor(draws, dtype=torch.float64, device=self._device).unsqueeze(1),
            temperature=self._column([s.sampling.temperature for s in chosen]),
            top_k=torch.tensor(top_k, device=self._device).unsqueeze(1) if min(top_k) < vocab else None,
            max_top_k=max(top_k),
            top_p=self._column(top_p) if min(top_p) < 1.0 else None,
            min_p=self._column(min_p) if max(min_p) > 0.0 else None,
            ranked=torch.tensor(ranked, device=self._device).unsqueeze(1) if any(ranked) else None,
        )
