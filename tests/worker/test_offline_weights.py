"""Other weights for the offline engine, between calls and while calls are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.text_models import save_tiny_chat_model
from worker import Engine
from worker.server.errors import RequestFault

GREEDY = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
PROMPTS = ["hello world", "the answer is", "stop and", "hello hello"]


@pytest.fixture(scope="module")
def second_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("second"), seed=8)


@pytest.fixture(scope="module")
def engine(chat_model: Path) -> Iterator[Engine]:
    with Engine(model_path=str(chat_model), max_total_tokens=4000, cpu_threads=1, max_running_requests=3) as engine:
        yield engine


def ids(answers: Any) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def versions(answers: Any) -> list[str]:
    return [answer["meta_info"]["weight_version"] for answer in answers]


async def test_calls_under_way_end_by_the_old_weights(engine: Engine, chat_model: Path, second_model: Path) -> None:
    old = ids(engine.generate(PROMPTS, sampling_params=GREEDY))
    running = engine.async_stream(PROMPTS[0], sampling_params=GREEDY | {"max_new_tokens": 150})
    begun = await anext(running)
    update = asyncio.create_task(
        asyncio.to_thread(engine.update_weights_from_disk, str(second_model), weight_version="2")
    )
    news = [begun, *[event async for event in running]]
    await update
    assert set(versions(news)) == {"default"} and news[-1]["output_ids"][:40] == old[0]
    after = engine.generate(PROMPTS, sampling_params=GREEDY)
    with Engine(model_path=str(second_model), max_total_tokens=4000, cpu_threads=1) as fresh:
        assert ids(after) == ids(fresh.generate(PROMPTS, sampling_params=GREEDY))
    assert versions(after) == ["2"] * 4
    engine.update_weights_from_disk(str(chat_model), weight_version="default")
    assert ids(engine.generate(PROMPTS, sampling_params=GREEDY)) == old


def test_a_refusal_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    old = engine.generate(PROMPTS, sampling_params=GREEDY)
    with pytest.raises(RequestFault, match="neither a directory nor") as fault:
        engine.update_weights_from_disk(str(tmp_path / "nowhere"), weight_version="3")
    assert (fault.value.status, fault.value.param) == (400, "model_path")
    again = engine.generate(PROMPTS, sampling_params=GREEDY)
    assert (ids(again), versions(again)) == (ids(old), versions(old))


@pytest.mark.long
async def test_all_calls_can_be_aborted_instead(engine: Engine, chat_model: Path) -> None:
    running = engine.async_stream(PROMPTS[0], sampling_params=GREEDY | {"max_new_tokens": 3000})
    await anext(running)
    await asyncio.to_thread(engine.update_weights_from_disk, str(chat_model), abort_all_requests=True)
    last = [event async for event in running][-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
