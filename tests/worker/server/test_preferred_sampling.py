"""--sampling-defaults and --preferred-sampling-params: what a request gets that leaves fields open."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import UserError
from tests.helpers.replica_app import App, serving
from worker.sampling_params import SamplingParams
from worker.server.sampling import SamplingDefaults, preferred_sampling
from worker.server.tokenizer import Tokenizer

PREFERRED = {"temperature": 0.3, "max_new_tokens": 7, "min_new_tokens": 3, "stop": ["END"], "sampling_seed": 5}


async def sampling_of(app: App, path: str, **body: Any) -> SamplingParams:
    response = await app.post(path, **body)
    assert response.status_code == 200, response.text
    return app.scheduler.requests[-1].sampling


async def test_open_fields_get_what_the_server_prefers(tokenizer: Tokenizer) -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    async with serving(tokenizer, defaults=defaults, preferred_sampling_params=PREFERRED) as app:
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        for path, body in (
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", chat),
            ("/generate", {"text": "a"}),
        ):
            got = await sampling_of(app, path, **body)
            assert (got.temperature, got.top_k, got.max_new_tokens) == (0.3, 20, 7)
            assert (got.min_new_tokens, got.stop, got.seed) == (3, ("END",), 5)
        info = (await app.client.get("/model_info")).json()
        assert info["preferred_sampling_params"] == PREFERRED


async def test_a_request_goes_before_what_the_server_prefers(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, preferred_sampling_params=PREFERRED) as app:
        body = {"prompt": "a", "temperature": 0.9, "max_tokens": 2, "stop": "x", "seed": 8}
        got = await sampling_of(app, "/v1/completions", **body)
        assert (got.temperature, got.max_new_tokens, got.stop, got.seed) == (0.9, 2, ("x",), 8)
        assert got.min_new_tokens == 2  # the preferred least number gives way to the request's limit
        native = {"max_new_tokens": None, "min_new_tokens": 0}
        got = await sampling_of(app, "/generate", text="a", sampling_params=native)
        assert (got.max_new_tokens, got.min_new_tokens) == (None, 0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"temperature": -1}, "--preferred-sampling-params: temperature: "),
        ({"temprature": 1}, "--preferred-sampling-params: temprature: "),
        ({"n": 2}, "n is for each request"),
    ],
)
def test_bad_preferences(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        preferred_sampling(given)
