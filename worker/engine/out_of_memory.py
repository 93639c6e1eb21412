"""Lack of memory, whichever library reports it: at the start the user must mend it, in a pass the step has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from common.errors import UserError
from worker.engine.batch import ForwardBatch, StepFailed

# What cuBLAS, Triton, the CUDA runtime and torch's CPU allocator say in their RuntimeErrors, in lower case.
_TEXTS = ("out of memory", "allocate memory", "alloc_failed")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error` says that memory ran out, or was raised while such an error was handled: what cleans up after one
    (the end of a graph's capture, say) often fails in turn."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def told_to_the_user(sentence: str) -> Iterator[None]:
    """Memory that runs out inside becomes a UserError with this sentence, which says what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(sentence) from None


def step_failed(error: Exception, batch: ForwardBatch, *, where: str) -> StepFailed:
    """The fault of a pass that found no memory in `where` (the GPU, the machine). Raises `error` itself if it is about
    anything else: only this kind leaves the runner whole."""
    if not is_out_of_memory(error):
        raise error
    flag = "--chunked-prefill-size" if len(batch.prefill_ids) else "--max-running-requests"
    memory = "--mem-fraction-static" if where == "GPU" else "--max-total-tokens"
    return StepFailed(f"The {where} has no memory left for this pass.", advice=f"Lower {flag} or {memory}.")
