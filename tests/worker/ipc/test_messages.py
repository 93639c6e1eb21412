"""A request reads the same with its prompt as a list and as bytes."""

from __future__ import annotations

from worker.ipc.messages import GenerateRequest
from worker.sampling_params import SamplingParams


def test_a_packed_request_has_the_same_prompt() -> None:
    request = GenerateRequest(rid="r", input_ids=[1, 2, 70_000], sampling=SamplingParams(), priority=3)
    packed = request.packed()
    assert packed.packed_ids == b"\x01\0\0\0\x02\0\0\0\x70\x11\x01\0"
    assert (packed.prompt_len, packed.prompt_key) == (request.prompt_len, request.prompt_key) == (3, packed.packed_ids)
    assert packed.packed() == packed
    assert (packed.rid, packed.priority, packed.input_ids) == ("r", 3, [])
