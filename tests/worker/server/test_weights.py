"""POST /update_weights_from_disk: what is asked of the scheduler, and which weights answers say they are by."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.helpers.openai_errors import check_error
from tests.helpers.processes import until
from tests.helpers.replica_app import App, serving
from worker.ipc.messages import CallReply, UpdateWeights, WeightsUpdated
from worker.server import scheduler_client
from worker.server.lifecycle import ReplicaState
from worker.server.tokenizer import Tokenizer

PATH = "/update_weights_from_disk"


async def version_of(app: App, **fields: Any) -> str:
    answer = (await app.post("/generate", text="hi", **fields)).json()
    return str(answer["meta_info"]["weight_version"])


async def test_an_update_is_seen_everywhere(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, weight_version="v1") as app:
        assert await version_of(app) == "v1"
        answer = await app.post(PATH, model_path="/models/2", weight_version="v2", flush_cache=True, is_async=False)
        assert (answer.status_code, answer.json()) == (
            200,
            {
                "success": True,
                "message": "The weights are those in /models/2, version v2.",
                "num_paused_requests": 3,
            },
        )
        (asked,) = app.scheduler.of_kind(UpdateWeights)
        assert asked == UpdateWeights(call_id=1, model_path="/models/2", weight_version="v2")
        assert await version_of(app) == "v2"
        for path in ("/model_info", "/get_model_info", "/server_info", "/get_server_info"):
            facts = (await app.client.get(path)).json()
            assert (facts["model_path"], facts["weight_version"]) == ("/models/2", "v2")
        assert facts["served_model_name"] == "tiny"  # the name clients use stays
        (card,) = (await app.client.get("/v1/models")).json()["data"]
        assert (card["id"], card["root"]) == ("tiny", "/models/2")


async def test_without_a_version_it_stays(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, weight_version="v1") as app:
        assert (await app.post(PATH, model_path="/models/2")).json()["success"]
        assert await version_of(app) == "v1"


async def test_an_answer_keeps_the_version_it_began_with(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, weight_version="v1") as app:
        app.scheduler.paused = True
        begun = asyncio.create_task(app.post("/generate", text="hi", stream=True))
        await until(lambda: bool(app.scheduler.live), 5, "the request is there")
        app.scheduler.step()
        waiting = asyncio.create_task(app.post("/generate", text="ho", stream=True))
        await until(lambda: len(app.scheduler.live) == 2, 5, "the second is there")
        assert (await app.post(PATH, model_path="/models/2", weight_version="v2")).status_code == 200
        app.scheduler.paused = False
        for task, version in ((begun, "v1"), (waiting, "v2")):
            told = (await task).text
            assert told.count(f'"weight_version":"{version}"') == told.count("weight_version") > 1


async def test_a_refusal_has_both_shapes_and_changes_nothing(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, weight_version="v1") as app:
        app.scheduler.weight_faults["/nowhere"] = "There is nothing."
        answer = await app.post(PATH, model_path="/nowhere", weight_version="v2", abort_all_requests=True)
        told = answer.json()
        assert answer.status_code == 400
        assert (told["success"], told["message"], told["num_paused_requests"]) == (False, "There is nothing.", 0)
        assert (told["error"]["message"], told["error"]["param"]) == ("There is nothing.", "model_path")
        assert await version_of(app) == "v1"
        facts = (await app.client.get("/model_info")).json()
        assert facts["model_path"] == "models/tiny"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "model_path"),
        ({"model_path": ""}, "model_path"),
        ({"model_path": 5}, "model_path"),
        ({"model_path": "x" * 5000}, "model_path"),
        ({"model_path": "/m", "load_format": "dummy"}, "load_format"),
        ({"model_path": "/m", "load_format": "gguf"}, "load_format"),
        ({"model_path": "/m.gguf", "load_format": "safetensors"}, "load_format"),
        ({"model_path": "/m", "flush_cache": False}, "flush_cache"),
        ({"model_path": "/m", "weight_version": ""}, "weight_version"),
        ({"model_path": "/m", "weight_version": 7}, "weight_version"),
        ({"model_path": "/m", "drain_timeout_s": -1}, "drain_timeout_s"),
        ({"model_path": "/m", "drain_timeout_s": 1e9}, "drain_timeout_s"),
        ({"model_path": "/m", "abort_all_requests": "yes"}, "abort_all_requests"),
    ],
)
async def test_bad_fields_reach_no_scheduler(tokenizer: Tokenizer, fields: dict[str, Any], param: str) -> None:
    async with serving(tokenizer) as app:
        check_error(await app.post(PATH, **fields), 400, param)
        assert app.scheduler.of_kind(UpdateWeights) == []


@pytest.mark.parametrize(("failure", "message"), [(None, "The server is shutting down."), ("It broke.", "It broke.")])
async def test_who_waits_for_the_scheduler_hears_that_the_replica_ends(
    tokenizer: Tokenizer, failure: str | None, message: str
) -> None:
    """The scheduler may take its time over both, so nothing else ends the wait."""
    async with serving(tokenizer) as app:
        app.scheduler.deliver = lambda message: None
        asked = [asyncio.create_task(app.post(path, model_path="/models/2")) for path in (PATH, "/stop_profile")]
        await until(lambda: len(app.scheduler.received) == 2, 5, "the scheduler was asked")
        app.service.end(failure)
        for answer in await asyncio.wait_for(asyncio.gather(*asked), 2):
            assert (answer.status_code, answer.json()["error"]["message"]) == (503, message)
        assert (await app.client.get("/v1/loads")).json()["error"]["message"] == message  # at once
        app.service.lifecycle.state = ReplicaState.READY  # for the end of the test


async def test_all_fields_reach_it(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        asked = {"abort_all_requests": True, "drain_timeout_s": 2.5, "load_format": "auto"}
        assert (await app.post(PATH, model_path="/m", **asked)).status_code == 200
        assert app.scheduler.of_kind(UpdateWeights) == [
            UpdateWeights(call_id=1, model_path="/m", abort_all=True, drain_timeout_s=2.5)
        ]


@pytest.mark.parametrize("keep_pause", [None, True, False])
async def test_a_pause_lasts_unless_it_shall_end(tokenizer: Tokenizer, keep_pause: bool | None) -> None:
    async with serving(tokenizer) as app:
        await app.post("/pause_generation", mode="abort")
        assert (await app.post(PATH, model_path="/m", keep_pause=keep_pause)).status_code == 200
        assert app.scheduler.paused == (keep_pause is not False)


async def test_it_may_take_longer_than_other_calls(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "_ANSWER_TIMEOUT_S", 0.01)
    async with serving(tokenizer) as app:
        monkeypatch.setattr(app.scheduler, "_update", lambda call: CallReply(call_id=-1, ok=True))
        asked = asyncio.create_task(app.post(PATH, model_path="/m"))
        await until(lambda: bool(app.scheduler.of_kind(UpdateWeights)), 5, "the scheduler is asked")
        await asyncio.sleep(0.05)
        assert not asked.done()
        app.service.receive(WeightsUpdated(call_id=1, model_path="/m", weight_version=None, num_held_back=0))
        assert (await asked).status_code == 200


async def test_not_before_the_model_is_loaded(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, opened=False) as app:
        assert (await app.post(PATH, model_path="/m")).status_code == 503
