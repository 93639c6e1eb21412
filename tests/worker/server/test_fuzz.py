"""Nearly right bodies: never a 5xx, never a word of our inside, nothing left behind."""

from __future__ import annotations

import pytest

from tests.helpers.mutated_bodies import GOOD, judge, mutated
from tests.helpers.replica_app import serving
from worker.server.tokenizer import Tokenizer

EACH = 40


@pytest.mark.parametrize("seed", [1])
async def test_nearly_right_bodies(tokenizer: Tokenizer, seed: int) -> None:
    wrong, statuses = [], set[int]()
    async with serving(tokenizer, tool_call_parser="hermes") as app:
        for path, good in GOOD.items():
            response = await app.client.post(path, json=good)
            assert response.status_code == 200, f"{path}: {response.text}"
            for body in mutated(path, seed, EACH):
                response = await app.client.post(path, content=body)
                statuses.add(response.status_code)
                if fault := judge(response.status_code, response.text):
                    wrong.append(f"{path} {body[:500]!r}: {fault}")
        assert app.service.num_live == 0
        assert not app.scheduler.live
    assert not wrong, "\n".join(wrong)
    assert {200, 400} <= statuses
