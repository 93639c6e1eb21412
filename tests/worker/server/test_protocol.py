"""Requests that offer to go on in another protocol, as Java's client makes them, are answered like all others."""

from __future__ import annotations

from tests.helpers.replica_app import serving
from worker.server.tokenizer import Tokenizer

OFFER = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAA"}


async def test_an_offer_of_another_protocol_is_passed_over(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        for prompt in ("one", "two\r\nupgrade: three"):
            body = {"prompt": prompt, "max_tokens": 10}
            answer = await app.client.post("/v1/completions", json=body, headers=OFFER)
            assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "hello"), answer.text
