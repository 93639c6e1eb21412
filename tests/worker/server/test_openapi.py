"""The OpenAPI document: there before the model is, whole, and about endpoints that exist."""

from __future__ import annotations

import json
import re

from tests.helpers.mutated_bodies import GOOD
from tests.helpers.replica_app import serving
from worker.server.app import _ROUTES
from worker.server.tokenizer import Tokenizer

_UNDOCUMENTED = {"/v1/tokenize", "/v1/detokenize", "/v1/responses/{name:path}"}  # other names; what is not kept


async def test_the_document(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, opened=False) as app:
        document = (await app.client.get("/openapi.json")).json()
        for path, methods in document["paths"].items():
            for method in methods:
                response = await app.client.request(method, path, content=b"{}")
                assert response.status_code in (200, 503), path  # it is there; the model is not
    assert set(GOOD) <= set(document["paths"])
    assert {path for methods, path, _ in _ROUTES if "POST" in methods} - set(document["paths"]) == _UNDOCUMENTED
    references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert references and set(references) <= set(document["components"]["schemas"])
    for methods in document["paths"].values():
        for operation in methods.values():
            assert {"200", "400", "503"} <= set(operation["responses"])
