"""The router benchmark: its workloads, its simulated workers over HTTP, whole runs live and in virtual time."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from benchmarks import router, routers
from benchmarks.router_model import WorkerModel
from benchmarks.router_workloads import synthetic, trace
from common.errors import UserError

TRACES = os.environ.get("CANOPY_TRACES")
needs_traces = pytest.mark.skipif(TRACES is None, reason="set CANOPY_TRACES to a directory with the recorded traces")


def test_sessions_come_from_their_seed_alone() -> None:
    assert synthetic(3) == synthetic(3)
    assert synthetic(3).sessions != synthetic(4).sessions
    found = synthetic(3)
    assert len({session.system for session in found.sessions}) <= 24
    assert all(len(session.system) == 8000 and 2 <= len(session.turns) <= 5 for session in found.sessions)
    assert 250 < len(found.sessions) < 390


def test_traces_share_text_where_they_share_blocks(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 2, 3]},
    ]
    path = tmp_path / "a_trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    found = trace(path, block_tokens=512)
    first, second = found.sessions
    assert (found.name, found.requests, second.arrival_s, second.turns[0].answer_tokens) == ("a_trace", 2, 1.5, 7)
    model = WorkerModel(None, block_chars=found.block_chars, block_tokens=found.block_tokens)
    assert model.prefill(first.turns[0].text, 0.0)[1:] == (1024, 0)
    assert model.prefill(second.turns[0].text, 0.0)[1:] == (1536, 512)
    assert len(trace(path, block_tokens=512, limit=1).sessions) == 1


def test_a_trace_without_blocks_says_nothing_to_a_router(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    with pytest.raises(UserError, match="--workload: .*no hash_ids"):
        trace(path, block_tokens=512)


def test_router_names() -> None:
    assert "--policy round_robin" in routers.named("canopy:round_robin").command
    assert routers.named("mine=run --urls {urls}") == routers.Router("mine", "run --urls {urls}")
    with pytest.raises(UserError, match="NAME=COMMAND"):
        routers.named("nonsense")


def test_a_router_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(routers, "ROOT", tmp_path)
    with pytest.raises(UserError, match="make bench-router"), routers.running(routers.named("smg"), ["http://x:1"]):
        pass


def test_virtual_time_prints_our_policies_and_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--virtual", "--duration", "5", "--cache-tokens", "15000", "--routers", "canopy", "canopy:round_robin"]
    assert router.main([*flags, "--json"]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(printed.splitlines()[-1])
    assert set(rows) == {"oracle", "first_owner", "cache_aware", "round_robin"}
    assert rows["round_robin"][0]["hit_rate"] < rows["cache_aware"][0]["hit_rate"]
    assert re.search(r"cache_aware .*prediction error \d", printed)


@pytest.mark.long
def test_a_live_run_agrees_with_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Real gateway, simulated workers and clients as processes: what hits does not depend on sockets."""
    flags = ["--duration", "3", "--cache-tokens", "60000", "--workers", "2", "--json", "--routers", "canopy"]
    assert router.main(flags) == 0
    live = json.loads(capsys.readouterr().out.splitlines()[-1])["canopy"][0]
    assert router.main([*flags, "--virtual"]) == 0
    virtual = json.loads(capsys.readouterr().out.splitlines()[-1])["cache_aware"][0]
    assert live["failed"] == 0
    assert live["hit_rate"] == pytest.approx(virtual["hit_rate"], abs=0.05)
    assert live["ttft_mean_ms"] >= virtual["ttft_mean_ms"] - 5
    assert live["cpu_us"] > 0 and live["rss_mib"] > 10


@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize("workers", [4, 8])
def test_mooncake_trace(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(TRACES or "") / "mooncake_conversation_trace.jsonl.gz")
    flags = ["--virtual", "--workload", path, "--workers", str(workers), "--cache-blocks", "2000", "0", "--json"]
    assert router.main([*flags, "--routers", "canopy", "canopy:round_robin"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    for rows in found:
        ours, theirs, oracle = (rows[name][0] for name in ("cache_aware", "round_robin", "oracle"))
        assert max(ours["request_spread"], ours["prefill_spread"]) < 1.2
        assert ours["hit_rate"] > max(theirs["hit_rate"], 0.9 * oracle["hit_rate"])
        assert ours["ttft_mean_ms"] < oracle["ttft_mean_ms"]


@needs_traces
def test_miniswe_trace(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(TRACES or "") / "lmcache_miniswe_smollm2_blk64.jsonl.gz")
    flags = ["--virtual", "--workload", path, "--block-tokens", "64", "--workers", "8", "--cache-blocks", "0"]
    assert router.main([*flags, "--routers", "canopy", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert rows["cache_aware"][0]["hit_rate"] > 0.92
