"""The seam between scheduler and runner: what one forward pass gets and what it gives back. NumPy only, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from worker.sampling_params import SamplingParams

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Float32s = npt.NDArray[np.float32]


NOT_FINITE = "The model computed numbers that are not finite."


class RowAdmission(msgspec.Struct, frozen=True, eq=False):
    """A request takes (or takes again, after a retraction) a row of the request table with this step.

    The runner sets up the row's sampling state from it; whatever the row held before is void. `output_ids` are the
    tokens generated before a retraction (penalties count them); `seed` is always resolved.
    """

    row: int
    sampling: SamplingParams
    seed: int
    output_ids: Sequence[int]


class ScoreRequest(msgspec.Struct, frozen=True, eq=False):
    """Log-probabilities wanted of a step, for `len(targets)` consecutive tokens of one sequence: those at the places
    `first`, `first + 1`, ... of its tokens in this step say what comes next.

    `targets` None: of the token sampled for this sequence; its place is then the sequence's last. `top` and `token_ids`
    as in LogprobsAsked.
    """

    index: int  # of the sequence in the batch
    first: int
    targets: Int32s | None
    top: int
    token_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return 1 if self.targets is None else len(self.targets)


class Scores(msgspec.Struct, frozen=True, eq=False):
    """Natural logarithms of probabilities under the model's own distribution: before penalties, biases, masks,
    temperature and filters. One line for each token of a ScoreRequest."""

    chosen: Float32s  # [n], of the target or sampled token
    top_ids: Int32s  # [n, top], best first
    top: Float32s  # [n, top]
    listed: Float32s  # [n, len(token_ids)]


class TokenMasks(msgspec.Struct, frozen=True, eq=False):
    """Which tokens a grammar allows next, for the sequences of a batch that have one. At least one token is allowed."""

    indices: Int32s  # [G], of the sequences in the batch; all of them are sampled in this step
    allowed: Int32s  # [G, ceil(vocab / 32)]: bit i % 32 of word i // 32 stands for token i


class ForwardBatch(msgspec.Struct, frozen=True, eq=False):
    """One step: R sequences, decodes first, then prefill chunks.

    Sequence i computes `query_lens[i]` tokens at positions `seq_lens[i] - query_lens[i] .. seq_lens[i] - 1`; its KV
    pages stand in row `rows[i]` of the runner's page table: the token at position p lies in slot
    `table[row, p // page_size] * page_size + p % page_size`. A decode's input token is what the runner last sampled
    for that row; the scheduler may not know it yet. `page_writes` are applied to the table before the pass, in order.
    """

    step_id: int
    rows: Int32s  # [R]
    query_lens: Int32s  # [R], tokens computed in this step; 1 for decodes
    seq_lens: Int32s  # [R], tokens in the KV cache after this step
    num_decode: int  # rows[:num_decode] are decodes
    prefill_ids: Int32s  # [sum(query_lens[num_decode:])], inputs of the prefill chunks, flat
    samples: Bools  # [R], False for a prefill chunk that is not the prompt's last
    page_writes: Int32s  # [W, 3] of (row, index in row, page)
    admissions: tuple[RowAdmission, ...]
    score_requests: tuple[ScoreRequest, ...] = ()
    masks: TokenMasks | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_decode + len(self.prefill_ids)


class StepResult(msgspec.Struct, frozen=True, eq=False):
    """What a pass sampled: `token_ids[i]` for sequence i, -1 where `samples[i]` was False. int32 [R]. `scores` answer
    the batch's `score_requests`, in order. An embedding model samples nothing: its `token_ids` are all -1, and
    `vectors` are those of the sequences with `samples`, in order."""

    token_ids: Int32s
    cuda_graph: bool = False  # a captured graph computed it
    scores: tuple[Scores, ...] = ()
    vectors: Float32s | None = None  # [number of samples, embedding_size], not normalised


class StepFailed(Exception):
    """A pass could not be computed (out of memory, numerical fault). Its requests are aborted; the runner lives on.

    The text is for clients; `advice` tells whoever runs the server which setting to change, for the log.
    """

    def __init__(self, text: str, *, advice: str = "") -> None:
        super().__init__(text)
        self.advice = advice


class PendingStep(Protocol):
    """A launched pass."""

    def result(self) -> StepResult:
        """Wait for the pass. Raises StepFailed."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a loaded runner tells the scheduler."""

    device: str
    dtype: str
    vocab_size: int
    context_len: int
    num_pages: int  # pages 1..num_pages may be handed out; page 0 takes the writes of padding
    page_size: int
    max_rows: int  # rows of the request table = bound on running requests
    eos_token_ids: tuple[int, ...]
    architectures: tuple[str, ...]
    weight_bytes: int
    kv_bytes_per_token: int
    available_memory_bytes: int
    overlaps: bool  # launch() returns before the pass is done, so scheduling ahead pays
    has_logits: bool = True  # False: its tokens come from no distribution, so there are no log-probabilities
    embedding_size: int = 0  # numbers in a vector; 0: it chooses tokens
    reuses_prefixes: bool = True  # False: every token of a prompt must be computed for its own sake


class NewWeights(Protocol):
    """Weights that a runner's model can take on: loaded and checked, but not in use."""

    def use(self) -> None:
        """Compute with them from the next pass on. Call it between passes, with none in flight."""
        ...


class ModelRunner(Protocol):
    """Runs passes in launch order. Not thread-safe, but for `load_weights`: one scheduler owns it."""

    @property
    def info(self) -> RunnerInfo: ...

    def launch(self, batch: ForwardBatch) -> PendingStep:
        """Start a pass. Raises StepFailed if it cannot be started."""
        ...

    def load_weights(self, model_path: str) -> NewWeights:
        """Read another checkpoint of the same model into the host's memory; takes seconds to minutes. Any thread may,
        while passes run. Raises UserError, with nothing changed, if it cannot be read or is of another model."""
        ...

    def close(self) -> None:
        """Free what the runner holds."""
        ...
