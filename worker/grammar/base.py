"""The seam between the scheduler and whatever knows grammars. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
import numpy.typing as npt

from worker.sampling_params import GrammarAsked

Words = npt.NDArray[np.int32]


class GrammarFault(ValueError):
    """A grammar that cannot be followed. The text is for the client."""


class GrammarState(Protocol):
    """Where one answer stands in its grammar."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        ...

    @property
    def pending(self) -> Future[None] | None:
        """Work in another thread that must be done before `allowed` is read; None: there is none. It fails with
        GrammarFault if nothing may follow and the answer is not complete."""
        ...

    @property
    def allowed(self) -> Words:
        """int32 [ceil(vocab / 32)], which tokens may come next, as in TokenMasks. Do not change it."""
        ...

    def accept(self, token: int) -> None:
        """Move on by one token, not while anything is pending. Raises GrammarFault if it is not allowed, or if nothing
        may follow and the answer is not complete."""
        ...


class CompiledGrammar(Protocol):
    """A grammar ready for use, shared by all requests that ask for it."""

    def start(self, held_back: Sequence[int], num_held_back: int) -> GrammarState:
        """The state of a new answer. The ids `held_back` must not be among its first `num_held_back` tokens, unless
        nothing else may come. Raises GrammarFault if no answer is possible."""
        ...


class GrammarCompiler(Protocol):
    """Compiles grammars beside the scheduler's loop."""

    def compile(self, asked: GrammarAsked) -> Future[CompiledGrammar]:
        """A future that fails with GrammarFault for what cannot be followed. Equal grammars are compiled once."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...
