"""Embeddings: what is sent, what is counted, and what neither figures nor reports may show of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.program import main as report
from benchmarks.serve.program import main
from common.errors import UserError

FLAGS = ["--backend", "openai-embeddings", "--disable-tqdm"]


class Server(ThreadingHTTPServer):
    """Counts a token for each id or letter of an input, half of them cached."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.vector: Any = [0.6, 0.8]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "bge"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/embeddings"
        self.server.bodies.append(body)
        tokens = len(body["input"])
        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": tokens // 2},
        }
        self._answer({"data": [{"index": 0, "embedding": self.server.vector}], "usage": usage})

    def _answer(self, fields: dict[str, Any]) -> None:
        text = json.dumps(fields).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_only_prompts_and_whole_answers_are_counted(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    flags = [*FLAGS, "--base-url", server.url, "--random-input-len", "20", "--random-range-ratio", "1"]
    flags += ["--num-prompts", "6", "--max-concurrency", "1", "2", "--goodput", "e2el:60000"]
    extra = ["--extra-request-body", '{"dimensions": 2}']
    assert main([*flags, *extra, "--output-file", str(out), "--output-details"]) == 0
    printed = capsys.readouterr().out
    assert "End-to-End Latency" in printed and "Goodput" in printed
    assert printed.splitlines()[-3].split()[-4:] == ["good/s", "in", "tok/s", "E2E"]
    assert not any(word in printed for word in ("First Token", "Inter-Token", "generated", "Output token", "TPOT"))
    first = json.loads(out.read_text().splitlines()[0])
    assert (first["completed"], first["total_input_tokens"], first["total_cached_tokens"]) == (6, 120, 60)
    assert first["request_goodput"] == first["request_throughput"] and first["input_throughput"] > 0
    assert not {"mean_ttft_ms", "mean_tpot_ms", "output_throughput", "total_output_tokens"} & set(first)
    assert set(server.bodies[-1]) == {"model", "input", "dimensions"} and server.bodies[-1]["model"] == "bge"

    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    assert report([str(out), "-o", str(page)]) == 0
    text = page.read_text()
    assert "in tok/s" in text and "End-to-end latency" in text and "<svg" in text
    assert not any(word in text for word in ("out tok/s", "TTFT (ms)", "Output tokens/s", "random_output_len"))


def test_texts_and_recorded_bodies_are_sent(server: Server, tmp_path: Path) -> None:
    texts, bodies = tmp_path / "texts.jsonl", tmp_path / "bodies.jsonl"
    texts.write_text('{"prompt": "some words"}\n')
    bodies.write_text('{"body": {"model": "x", "input": ["a", "b"], "encoding_format": "base64"}}\n')
    common = [*FLAGS, "--base-url", server.url, "--num-prompts", "1", "--warmup-requests", "0", "--dataset-path"]
    assert main([*common, str(texts), "--dataset-name", "custom"]) == 0
    assert main([*common, str(bodies), "--dataset-name", "openai"]) == 0
    assert server.bodies == [
        {"model": "bge", "input": "some words"},
        {"model": "bge", "input": ["a", "b"], "encoding_format": "base64"},
    ]


@pytest.mark.parametrize("vector", [[], "", None])
def test_an_empty_vector_is_a_failure(server: Server, vector: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.vector = vector
    flags = [*FLAGS, "--base-url", server.url, "--num-prompts", "1", "--warmup-requests", "0"]
    assert main([*flags, "--random-input-len", "4"]) == 1
    assert "failed: The answer has no embedding." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--goodput", "ttft:5"], "e2el is their only limit"),
        (["--dataset-name", "conversation"], "no answers that conversations could go on with"),
    ],
)
def test_what_embeddings_have_not(flags: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        main([*FLAGS, *flags])
