"""The access log: one line a request with its id, as text and with fields as JSON."""

from __future__ import annotations

import json
import logging

import pytest

from common.logs import JsonFormatter, LineFormatter
from gateway.proxy.access_log import AccessLog


def test_text_and_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    log = AccessLog(enabled=True)
    log.add(b"id-1", "/v1/completions", 200, "w", "prefix", 0.25)
    log.add(b"id-2", "/v1/completions", 503, "", "", 0.0)
    log.flush()
    log.flush()
    (record,) = caplog.records
    first, second = LineFormatter().format(record).splitlines()
    assert first.endswith("] id-1 /v1/completions 200 w prefix 0.250s")
    assert second.startswith("[") and second.endswith("] id-2 /v1/completions 503 - - 0.000s")
    entries = [json.loads(line) for line in JsonFormatter("gateway").format(record).splitlines()]
    assert [entry["request_id"] for entry in entries] == ["id-1", "id-2"]
    assert entries[0]["fields"] | {"request_id": "id-1"} == {
        "request_id": "id-1",
        "endpoint": "/v1/completions",
        "status": 200,
        "worker": "w",
        "reason": "prefix",
        "duration_s": 0.25,
    }
