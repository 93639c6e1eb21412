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
    assert (figures["mean_tpot_ms"] is None, figures["p99_itl_ms"] is None) == (not stream, not stream)
    assert figures["num_prompts"] == 12


def test_a_sweep_of_conversations_keeps_a_line_for_each_level(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    flags = ["--base-url", url, "--dataset-name", "conversation", "--conv-num-sessions", "4", "--conv-turns", "2", "2"]
    flags += [
        "--conv-system-prompt-len",
        "64",
        "--conv-output-len",
        "4",
        "8",
        "--conv-pause-s",
        "0.01",
        "--flush-cache",
    ]
    assert main([*flags, "--max-concurrency", "1", "3", "--output-file", str(out), "--tag", "a"]) == 0
    one, three = (json.loads(line) for line in out.read_text().splitlines())
    found = [(run["max_concurrency"], run["completed"], run["skipped"]) for run in (one, three)]
    assert found == [(1, 8, 0), (3, 8, 0)]
    assert one["max_concurrent_requests"] == 1 < three["max_concurrent_requests"] <= 3
    # the second turn of each session begins with the first one and its answer
    assert min(one["total_cached_tokens"], three["total_cached_tokens"]) >= 4 * 64
    assert one["server_info"] is not None and one["request_rate"] == "inf"
    printed = capsys.readouterr().out
    assert printed.count("Serving Benchmark Result") == 2 and "conc." in printed.splitlines()[-3]


def test_a_trace_is_replayed_at_its_times(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    entries = ({"timestamp": 4000 * i, "input_length": 600, "output_length": 3, "hash_ids": [0, i]} for i in (1, 2, 3))
    trace.write_text("\n".join(map(json.dumps, entries)))
    flags = ["--base-url", url, "--dataset-name", "mooncake", "--dataset-path", str(trace), "--json"]
    assert main([*flags, "--use-trace-timestamps", "--trace-speed", "20"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["completed"], figures["request_rate"]) == (3, "trace")
    assert figures["duration"] >= 0.4 and figures["total_cached_tokens"] >= 2 * 496
    assert figures["mean_send_delay_ms"] is not None
    assert main([*flags, "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "5", "--ramp-up-end-rps", "50"]) == 0
    assert json.loads(capsys.readouterr().out)["request_rate"] == "ramp"


def test_what_the_server_refuses_is_told_and_gives_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", url, "--num-prompts", "2", "--random-input-len", "9000", "--random-range-ratio", "1"]
    assert main([*flags, "--random-output-len", "4", "--disable-tqdm"]) == 1
    assert "failed: HTTP 400" in capsys.readouterr().out


TRACE = ["--dataset-path", "/no/file", "--dataset-name"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--base-url", "http://127.0.0.1:9", "--ready-check-timeout-sec", "0"], "127.0.0.1:9 is not ready"),
        (["--base-url", "localhost:9"], "does not begin with http://"),
        (["--dataset-name", "azure"], "needs --dataset-path"),
        (["--use-trace-timestamps"], "needs a trace"),
        (["--num-prompts", "0"], "--num-prompts must be greater than 0"),
        (["--num-prompts", "many"], "--num-prompts: invalid int"),
        (["--request-rate", "1", "-2"], "--request-rate must be greater than 0"),
        (["--request-rate", "1", "2", "--max-concurrency", "3", "4"], "A sweep goes over rates or over"),
        (["--random-range-ratio", "2"], "between 0 and 1"),
        (["--conv-turns", "5", "2"], "--conv-turns takes two numbers"),
        (["--goodput", "speed:1"], "'speed:1' is not one of ttft"),
        (["--extra-request-body", "[1]"], "must be a JSON object"),
        (["--extra-request-body", "{"], "--extra-request-body"),
        ([*TRACE, "mooncake"], "cannot read /no/file"),
        ([*TRACE, "trace", "--request-rate", "2", "--use-trace-timestamps"], "does not go with"),
        (["--ramp-up-strategy", "linear"], "needs --ramp-up-start-rps and --ramp-up-end-rps"),
        (["--ramp-up-end-rps", "3"], "need --ramp-up-strategy"),
        (["--backend", "vllm-chat"], "give --tokenizer"),
        (["--backend", "vllm", "--dataset-name", "conversation"], "does not answer with token ids"),
        (["--profile"], "has no --profile"),
        (["--result-filename", "x.json"], "has no --result-filename: give --output-file FILE."),
        (["--output-file", "/no/file"], "cannot write /no/file"),
    ],
)
def test_faults_are_one_sentence(flags: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        main(flags)
