"""Real processes: every line of a replica's log is JSON if asked for, and a model without a tokenizer is served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx

from tests.helpers.replica_process import replica
from worker.log_lines import DecodeLine, PrefillLine, StartupLine, parse

FLAGS = ["--max-total-tokens", "4000", "--max-running-requests", "2", "--decode-log-interval", "5"]


def test_json_logs_and_requests_without_a_tokenizer(chat_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "bare"
    model.mkdir()
    shutil.copy(chat_model / "config.json", model)  # neither weights nor tokenizer
    flags = [*FLAGS, "--load-format", "dummy", "--skip-tokenizer-init", "--log-format", "json", "--log-requests"]
    flags += ["--log-level-http", "info", "--uvicorn-access-log-exclude-prefixes", "/health"]
    with replica(model, tmp_path, *flags) as server:
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
        headers = {"authorization": "Bearer secret-key"}
        answer = httpx.post(f"{server.url}/generate", json=body, headers=headers, timeout=30).json()
        assert len(answer["output_ids"]) == 20
        assert httpx.get(f"{server.url}/health", headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
    entries = [json.loads(line) for line in server.log.splitlines()]
    assert {entry["process"] for entry in entries} == {"frontend", "scheduler"}
    assert all(entry["level"] == "info" and entry["time"] and entry["pid"] for entry in entries)
    events = {entry["event"]: entry["fields"] for entry in entries if "event" in entry}
    assert events["StartupLine"]["max_total_num_tokens"] == 4000
    assert events["DecodeLine"]["running"] == 1
    assert events["RequestReceived"]["prompt"] == [5, 6, 7]
    assert events["RequestFinished"]["answer"] == answer["output_ids"]
    accesses = [entry["message"] for entry in entries if entry["logger"] == "uvicorn.access"]
    assert any("GET /v1/models" in line for line in accesses)
    assert not any("/health" in line for line in accesses)
    assert "secret-key" not in server.log


def test_text_logs_hold_the_lines_that_tools_parse(chat_model: Path, tmp_path: Path) -> None:
    with replica(chat_model, tmp_path, *FLAGS) as server:
        body = {"prompt": "hello", "max_tokens": 12, "ignore_eos": True}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).status_code == 200
    kinds = [type(line) for text in server.log.splitlines() if (line := parse(text)) is not None]
    assert kinds == [StartupLine, PrefillLine, DecodeLine, DecodeLine]
    assert "hello" not in server.log and "POST /v1" not in server.log
