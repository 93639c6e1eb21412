"""schemathesis over the OpenAPI document: no 5xx, and no status that the document does not tell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.helpers.gateway_harness import running_gateway
from tests.helpers.replica_process import replica
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]

EXAMPLES = 60  # of each operation
_ADMIN = ("/abort_request",)  # not for clients of a gateway


async def test_no_5xx_and_no_undocumented_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANOPY_CACHE", str(tmp_path))  # where profiles go
    schemathesis: Any = pytest.importorskip("schemathesis", reason="make test-clients installs it")
    model = save_tiny_chat_model(tmp_path / "tiny-chat")
    with replica(model, tmp_path, "--tool-call-parser", "hermes") as running:
        document = httpx.get(f"{running.url}/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        async with running_gateway([running.url]) as gateway:
            base = f"http://127.0.0.1:{gateway.port}"
            for result in schema.get_all_operations():
                operation = result.ok()
                url = running.url if operation.path in _ADMIN else base
                await asyncio.to_thread(try_operation, operation, url)
        assert running.is_clean()


def try_operation(operation: Any, base: str) -> None:
    """Many requests to one operation, right and wrong ones."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import status_code_conformance

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        response = case.call(base_url=base, timeout=60)
        case.validate_response(response, checks=[not_a_server_error, status_code_conformance])

    run()
