"""Settings that contradict each other end the start with exit code 2 and one sentence."""

from __future__ import annotations

import pytest

from worker.__main__ import main


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--chunked-prefill-size 0", "--chunked-prefill-size must be positive, or -1 for no chunks."),
        (
            "--chunked-prefill-size 10 --page-size 4",
            "--chunked-prefill-size 10 must be a multiple of --page-size 4; change one of the two.",
        ),
        ("--served-model-name base:adapter", "--served-model-name must not hold a colon; choose another name."),
        (
            "--enable-priority-scheduling --schedule-policy lpm",
            "--enable-priority-scheduling does not go with --schedule-policy lpm; use one of fcfs, lof, priority.",
        ),
        (
            "--retraction-policy priority",
            "--retraction-policy priority needs --enable-priority-scheduling; add it, or leave the policy out.",
        ),
        ("--ssl-keyfile key.pem", "--ssl-keyfile and --ssl-certfile go together; give both or none."),
        ("--ssl-certfile cert.pem", "--ssl-keyfile and --ssl-certfile go together; give both or none."),
        (
            "--ssl-ca-certs ca.pem",
            "--ssl-ca-certs needs --ssl-keyfile and --ssl-certfile; give them too, or leave it out.",
        ),
        (
            "--ssl-keyfile-password open-sesame",
            "--ssl-keyfile-password needs --ssl-keyfile and --ssl-certfile; give them too, or leave it out.",
        ),
        ("--fastapi-root-path v2", "--fastapi-root-path v2 must begin with a slash and not end with one, as in /v2."),
        (
            "--fastapi-root-path /v2/",
            "--fastapi-root-path /v2/ must begin with a slash and not end with one, as in /v2.",
        ),
        ("--gc-threshold 1 2 3 4", "--gc-threshold must have at most 3 values (got ['1', '2', '3', '4'])."),
        ("--gc-threshold -1", "--gc-threshold must be at least 0 (got '-1')."),
        ("--cuda-graph-bs 4 0", "--cuda-graph-bs must be at least 1 (got '0')."),
        (
            "--bucket-inter-token-latency 1 1",
            "--bucket-inter-token-latency must list rising numbers, each once; sort them.",
        ),
        ("--bucket-time-to-first-token 1 -1", "--bucket-time-to-first-token must be at least 0 (got '-1')."),
        (
            "--chat-template chatml --hf-chat-template-name rag",
            "--chat-template and --hf-chat-template-name exclude each other; give one.",
        ),
        (
            "--skip-tokenizer-init --chat-template chatml",
            "--chat-template is of no use to --skip-tokenizer-init; leave one of the two out.",
        ),
        (
            "--skip-tokenizer-init --tokenizer-path t",
            "--tokenizer-path is of no use to --skip-tokenizer-init; leave one of the two out.",
        ),
        (
            "--cuda-graph-max-bs 8 --cuda-graph-bs 4 16",
            "--cuda-graph-bs 16 is above --cuda-graph-max-bs 8; change one of the two.",
        ),
        (
            '--device sim --json-model-override-args {"hidden_size":7,"vocab_size":9}',
            "--json-model-override-args: hidden_size changes nothing with --device sim, whose speed and memory are "
            "those of --sim-profile; leave it out.",
        ),
        ("--sim-speed 10", "--sim-speed needs --device sim; add that, or leave it out."),
        (
            "--dp 2 --tp 4",
            "--tp-size 4 is not built yet: a replica uses one GPU; pick a model that fits it, and add GPUs with "
            "canopy serve --replicas N.",
        ),
        (
            "--dp-size 8 --enable-dp-attention",
            "--dp-size 8 is not built yet: use canopy serve --replicas N, whose gateway balances the load.",
        ),
        (
            "--enable-torch-compile",
            "--enable-torch-compile is not built yet: canopy brings its own fused kernels and CUDA graphs, "
            "leave it out.",
        ),
        (
            "--quantization fp8",
            "--quantization fp8 is not built yet: leave it out to serve the weights as they are.",
        ),
        (
            "--kv-cache-dtype fp8_e5m2",
            "--kv-cache-dtype fp8_e5m2 is not built yet: leave it out, the cache has the compute type.",
        ),
    ],
)
def test_contradictions(flags: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-path", "m", *flags.split()]) == 2
    assert capsys.readouterr().err == f"canopy worker: {sentence}\n"


@pytest.mark.parametrize(
    "flags",
    [
        "--chunked-prefill-size 12 --page-size 4",
        "--chunked-prefill-size -1 --page-size 7",
        "--enable-priority-scheduling --schedule-policy lof --retraction-policy priority",
        "--fastapi-root-path /v2",
        "--device sim --sim-speed 10",
        "--gc-threshold 700 10 10",
        "--cuda-graph-max-bs 16 --cuda-graph-bs 4 16",
        '--device sim --json-model-override-args {"max_position_embeddings":512}',
        '--json-model-override-args {"hidden_size":7}',
    ],
)
def test_what_only_looks_like_one(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--model-path", "m", *flags.split(), "--print-config"])
    assert end.value.code == 0
