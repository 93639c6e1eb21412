"""Drives a ModelRunner without the scheduler: hands out pages, builds batches, keeps what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from worker.engine.batch import ForwardBatch, ModelRunner, RowAdmission
from worker.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class DrivenSequence:
    """One sequence on its row. `tokens` = prompt + outputs so far; `num_computed` of them have KV."""

    row: int
    prompt_len: int
    tokens: list[int]
    sampling: SamplingParams = GREEDY
    seed: int = 0
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    admitted: bool = False
    num_prior_outputs: int = 0  # trailing tokens of the prompt that were generated before a retraction

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def decoding(self) -> bool:
        return self.admitted and self.num_computed == len(self.tokens) - 1 and self.num_computed >= self.prompt_len


class RunnerDriver:
    """A minimal scheduler: pages are handed out in a scattered order, so nothing is contiguous by luck."""

    def __init__(self, runner: ModelRunner, *, shuffle_seed: int = 0) -> None:
        self.runner = runner
        self.sequences: list[DrivenSequence] = []
        order = np.random.default_rng(shuffle_seed).permutation(runner.info.num_pages) + 1
        self._free = [int(p) for p in order]
        self._step = 0

    def add(
        self, prompt: Sequence[int], *, row: int | None = None, share: DrivenSequence | None = None, **options: object
    ) -> DrivenSequence:
        """A new sequence; with `share` it starts on the whole pages that hold that sequence's common prefix."""
        sequence = DrivenSequence(
            row=len(self.sequences) if row is None else row,
            prompt_len=len(prompt),
            tokens=list(prompt),
            **options,  # type: ignore[arg-type]
        )
        if share is not None:
            size = self.runner.info.page_size
            same = 0
            while same < min(len(prompt) - 1, share.num_computed) and prompt[same] == share.tokens[same]:
                same += 1
            sequence.pages = share.pages[: same // size]
            sequence.num_computed = same // size * size
        self.sequences.append(sequence)
        return sequence

    def drop(self, sequence: DrivenSequence) -> None:
        """Forget a sequence and give its pages back (do not drop one that shares)."""
        self.sequences.remove(sequence)
        self._free.extend(sequence.pages)

    def step(self, *, chunk: int | None = None) -> None:
        """One pass over all sequences: decodes, and prefill chunks of at most `chunk` tokens each."""
        decodes = [s for s in self.sequences if s.decoding]
        prefills = [s for s in self.sequences if not s.decoding]
        lens = [1] * len(decodes) + [min(chunk or 1 << 30, len(s.tokens) - s.num_computed) for s in prefills]
        everyone = decodes + prefills
        ids: list[int] = []
        for s, n in zip(prefills, lens[len(decodes) :], strict=True):
            ids += s.tokens[s.num_computed : s.num_computed + n]
        admissions = tuple(
            RowAdmission(s.row, s.sampling, s.seed, s.tokens[s.prompt_len - s.num_prior_outputs : s.prompt_len])
            for s in prefills
            if not s.admitted
        )
        writes = [w for s, n in zip(everyone, lens, strict=True) for w in self._page_writes(s, n)]
        samples = np.array([s.num_computed + n == len(s.tokens) for s, n in zip(everyone, lens, strict=True)])
        batch = ForwardBatch(
            step_id=self._step,
            rows=np.array([s.row for s in everyone], dtype=np.int32),
            query_lens=np.array(lens, dtype=np.int32),
            seq_lens=np.array([s.num_computed + n for s, n in zip(everyone, lens, strict=True)], dtype=np.int32),
            num_decode=len(decodes),
            prefill_ids=np.array(ids, dtype=np.int32),
            samples=samples,
            page_writes=np.array(writes, dtype=np.int32).reshape(-1, 3),
            admissions=admissions,
        )
        self._step += 1
        result = self.runner.launch(batch).result()
        for s, n, sampled, token in zip(everyone, lens, samples, result.token_ids.tolist(), strict=True):
            s.num_computed += n
            s.admitted = True
            if sampled:
                s.tokens.append(token)
            else:
                assert token == -1

    def run(self, num_outputs: int, *, chunk: int | None = None) -> None:
        """Step until every sequence has that many outputs; sequences that have them stop taking part."""
        parked: list[DrivenSequence] = []
        while self.sequences:
            self.step(chunk=chunk)
            parked += [s for s in self.sequences if len(s.outputs) >= num_outputs]
            self.sequences = [s for s in self.sequences if len(s.outputs) < num_outputs]
        self.sequences = parked

    def _page_writes(self, s: DrivenSequence, num_new: int) -> list[tuple[int, int, int]]:
        size = self.runner.info.page_size
        writes = [] if s.admitted else [(s.row, i, page) for i, page in enumerate(s.pages)]
        while len(s.pages) * size < s.num_computed + num_new:
            s.pages.append(self._free.pop())
            writes.append((s.row, len(s.pages) - 1, s.pages[-1]))
        return writes
