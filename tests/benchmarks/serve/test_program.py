"""The program against a real replica on the simulated accelerator, which needs no tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.offline import LLAMA_3_8B
from benchmarks.serve.program import main
from common.errors import UserError
from tests.helpers.replica_process import replica


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text(json.dumps(LLAMA_3_8B))
    flags = ["--device", "sim", "--sim-speed", "50", "--skip-tokenizer-init"]
    with replica(model, tmp_path_factory.mktemp("server"), *flags) as running:
        yield running.url


@pytest.mark.parametrize("backend", ["canopy", "vllm"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_run_counts_every_token(backend: str, stream: bool, url: str, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    flags = ["--backend", backend, "--base-url", url, "--num-prompts", "12", "--max-concurrency", "8"]
    flags += ["--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "2", "--gsp-prompts-per-group", "6"]
    flags += ["--gsp-system-prompt-len", "256", "--gsp-question-len", "32", "--gsp-output-len", "10"]
    flags += [
        "--output-file",
        str(out),
        "--output-details",
        "--disable-tqdm",
        *([] if stream else ["--disable-stream"]),
    ]
    assert main([*flags, "--flush-cache", "--goodput", "ttft:60000"]) == 0
    figures = json.loads(out.read_text())
    assert (figures["completed"], figures["failed"]) == (12, 0)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (12 * 288, 120)
    assert figures["total_cached_tokens"] >= 256
    assert figures["max_concurrent_requests"] <= 8
    assert figures["request_goodput"] == pytest.approx(figures["request_throughput"])
    assert 0 < figures["median_ttft_ms"] <= figures["median_e2e_latency_ms"]
    # tokens that come close together may share an event
    assert len(figures["itls"]) == 12 and all(len(gaps) <= 9 for gaps in figures["itls"])
    assert any(figures["itls"]) == stream


def test_what_the_server_refuses_is_told_and_gives_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", url, "--num-prompts", "2", "--random-input-len", "9000", "--random-range-ratio", "1"]
    assert main([*flags, "--random-output-len", "4", "--disable-tqdm"]) == 1
    assert "failed: HTTP 400" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--base-url", "http://127.0.0.1:9"], "names no model"),
        (["--dataset-name", "azure"], "needs --dataset-path"),
        (["--use-trace-timestamps"], "needs a trace"),
        (["--num-prompts", "0"], "--num-prompts must be greater than 0"),
        (["--random-range-ratio", "2"], "between 0 and 1"),
        (["--goodput", "speed:1"], "'speed:1' is not one of ttft"),
        (["--extra-request-body", "[1]"], "must be a JSON object"),
        (["--dataset-name", "mooncake", "--dataset-path", "/no/file"], "cannot read /no/file"),
    ],
)
def test_faults_are_one_sentence(flags: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        main(flags)
