"""What counts as lack of memory, and what users and clients are told about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.errors import UserError
from worker.engine.batch import ForwardBatch
from worker.engine.out_of_memory import is_out_of_memory, step_failed, told_to_the_user


def batch(num_decode: int, num_prefill: int) -> ForwardBatch:
    lens = np.array([1] * num_decode + [num_prefill] * bool(num_prefill), np.int32)
    return ForwardBatch(
        step_id=0,
        rows=np.arange(len(lens), dtype=np.int32),
        query_lens=lens,
        seq_lens=lens,
        num_decode=num_decode,
        prefill_ids=np.zeros(num_prefill, np.int32),
        samples=np.ones(len(lens), np.bool_),
        page_writes=np.empty((0, 3), np.int32),
        admissions=(),
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (torch.OutOfMemoryError(), True),
        (MemoryError(), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_what_counts(error: BaseException | None, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_what_fails_while_cleaning_up_counts_too() -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("num_prefill", "where", "advice"),
    [
        (8, "GPU", "Lower --chunked-prefill-size or --mem-fraction-static."),
        (0, "GPU", "Lower --max-running-requests or --mem-fraction-static."),
        (0, "machine", "Lower --max-running-requests or --max-total-tokens."),
    ],
)
def test_a_failed_step_names_the_flags_of_its_phase(num_prefill: int, where: str, advice: str) -> None:
    fault = step_failed(MemoryError(), batch(2, num_prefill), where=where)
    assert str(fault) == f"The {where} has no memory left for this pass."
    assert fault.advice == advice


def test_other_errors_are_no_failed_step() -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError) as caught:
        step_failed(error, batch(1, 0), where="GPU")
    assert caught.value is error


def test_at_the_start_it_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match=r"^Lower --x\.$"), told_to_the_user("Lower --x."):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(RuntimeError, match="shape"), told_to_the_user("Lower --x."):
        raise RuntimeError("shape mismatch")
    with pytest.raises(UserError, match="inner"), told_to_the_user("outer"), told_to_the_user("inner"):
        raise MemoryError
