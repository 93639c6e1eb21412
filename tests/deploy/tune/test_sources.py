"""Observations from logs and metrics, and the command over both."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common.errors import UserError
from common.tuning.observation import Facts, Phase, Sample, Symptom
from common.tuning.replica_watch import ReplicaWatch, series_by_replica
from deploy.tune.command import main
from deploy.tune.logs import read_log

SGLANG = Path(__file__).with_name("sglang.log").read_text()  # written by hand after its formats


def test_an_sglang_log(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(SGLANG)
    seen = read_log(path, Facts(gpu_gb=141))
    assert seen.samples == [Sample(233, 417, 0.56, True), Sample(10, 0, 0.11, False)]
    assert (seen.minutes, seen.retractions, seen.new_tokens, seen.cached_tokens) == (2 + 2 / 60, 1, 100, 300)
    assert (seen.out_of_memory, seen.symptoms) == ([Phase.DECODE], {Symptom.PEER_ACCESS})
    assert seen.startup is not None and seen.startup.available_gb == 13.5
    assert (seen.facts.schedule_policy, seen.facts.tp_size, seen.facts.quantization) == ("fcfs", 2, None)
    assert (seen.facts.gpu_gb, seen.facts.torch_compile, seen.row_cap, seen.chunk_tokens) == (141, False, 4096, 8192)


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    lines = [{"time": line[1:20], "level": "info", "message": line.split("] ", 1)[-1]} for line in SGLANG.splitlines()]
    path.write_text("\n".join(map(json.dumps, lines[:-1])))
    seen = read_log(path, Facts())
    assert (len(seen.samples), seen.minutes, seen.retractions) == (2, 2 + 2 / 60, 1)


def test_our_own_failed_step(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    failed = "A step failed. #decode: 3, #new-token: 8192, #aborted-req: 5. The GPU has no memory left for this pass."
    path.write_text(f"2026-01-05 10:00:00 {failed}\n")
    assert read_log(path, Facts()).out_of_memory == [Phase.PREFILL]


def test_a_log_of_an_unknown_format(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"hello\n\xff\xfe\n{}\n")
    with pytest.raises(UserError, match="has no line that canopy tune knows"):
        read_log(path, Facts())
    with pytest.raises(UserError, match="No such file"):
        read_log(tmp_path / "none", Facts())


METRICS = """\
# TYPE canopy_num_running_reqs gauge
canopy_num_running_reqs{{model_name="m",worker="w1"}} {running}
# TYPE canopy_num_queue_reqs gauge
canopy_num_queue_reqs{{model_name="m",worker="w1"}} 40
# TYPE canopy_token_usage gauge
canopy_token_usage{{model_name="m",worker="w1"}} 0.5
# TYPE canopy_scheduler_steps counter
canopy_scheduler_steps_total{{worker="w1"}} 3
# TYPE canopy_num_retracted_requests counter
canopy_num_retracted_requests_total{{model_name="m",worker="w1"}} {retracted}
# TYPE canopy_other gauge
canopy_other{{worker="w2"}} 1
# TYPE canopy_startup_available_memory_bytes gauge
canopy_startup_available_memory_bytes{{worker="w1"}} 16106127360
"""
SETTINGS = '{"mem_fraction_static": 0.8, "schedule_policy": "lpm", "quantization": null, "tp_size": 2}'


def test_series_of_replicas() -> None:
    found = series_by_replica(METRICS.format(running=7, retracted=2))
    assert set(found) == {"w1"}
    assert found["w1"]["num_running_reqs"] == 7
    assert series_by_replica('# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{tp_rank="0"} 3\n') == {
        "the worker": {"num_queue_reqs": 3.0}
    }


def test_a_watch_counts_growth_and_leaves_out_idle_moments() -> None:
    watch = ReplicaWatch("w")
    for second, (running, retracted, prompt, cached) in enumerate(
        [(0, 5, 0, 0), (9, 5, 100, 0), (9, 7, 200, 50), (9, 7, 300, 150), (0, 8, 300, 150)]
    ):
        watch.take(
            float(second),
            {
                "num_running_reqs": running,
                "num_queue_reqs": 0,
                "token_usage": 0.2,
                "num_retracted_requests_total": retracted,
                "admitted_prompt_tokens_total": prompt,
                "admitted_cached_tokens_total": cached,
            },
        )
    seen = watch.observation(Facts())
    assert (len(seen.samples), seen.retractions, seen.new_tokens, seen.cached_tokens) == (3, 2, 150, 150)
    assert seen.minutes == 4 / 60


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {"/engine_metrics": METRICS.format(running=7, retracted=0), "/server_info": SETTINGS}
            text = answers.get(self.path, "").encode()
            self.send_response(200 if text else 404)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def test_watching_a_gateway(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", server, "--window", "0.1", "--json"], {}) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(r["replica"], r["samples"], r["median_waiting"]) for r in told["replicas"]] == [("w1", 1, 40)]
    assert [f["rule"] for f in told["replicas"][0]["findings"]] == [0, 9]
    assert told["flags"] == {"mem-fraction-static": "0.81"}  # /server_info told the present value
    assert main(["--url", server, "--window", "0.1", "--json", "--facts", '{"mem_fraction_static": 0.7}'], {}) == 0
    assert json.loads(capsys.readouterr().out)["flags"] == {"mem-fraction-static": "0.71"}


def test_advice_without_a_value_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    startup = "max_total_num_tokens=9, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4, "
    path.write_text(f"[2026-01-05 10:00:00] {startup}context_len=8, available_gpu_mem=15.00 GB\n")
    assert main([str(path)], {}) == 0
    text = capsys.readouterr().out
    assert "Raise --mem-fraction-static by 0.01; its present value is not known." in text
    assert text.endswith("No flag's new value can be given; what is marked CHANGE says what to do.\n")


def test_the_text_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    held = (
        "Decode batch. #running-req: 200, #token: 9, token usage: 0.50, cuda graph: True, gen throughput (token/s): 4.0"
    )
    path.write_text("".join(f"[2026-01-05 10:00:{i:02}] {held}, #queue-req: 300\n" for i in range(30)))
    assert main([str(path)], {}) == 0
    text = capsys.readouterr().out
    assert "requests waited while token usage was below 0.9 in 100% of 30 samples" in text
    assert "--schedule-conservativeness 0.3 (confidence 100%)" in text
    assert "Flags to change, one at a time, watching again after each: --schedule-conservativeness 0.3" in text


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--facts", '{"gpu": 3}'], "there is no fact 'gpu'"),
        (["--facts", '{"gpu_gb": "x"}'], "--facts: Expected"),
        (["--url", "http://127.0.0.1:9"], "Cannot ask http://127.0.0.1:9"),
    ],
)
def test_faults(argv: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        main(argv, {})
