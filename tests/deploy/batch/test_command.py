"""`canopy batch` over real HTTP: answers, faults, crashes, a gateway that goes and comes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from deploy.batch.command import main
from tests.deploy.batch.fake_gateway import FakeGateway, echo
from tests.deploy.batch.small_disk import files_no_longer_than


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway().running() as made:
        yield made


def write(path: Path, count: int) -> Path:
    with path.open("w") as file:
        for i in range(count):
            body = {"model": "m", "prompt": f"prompt {i % 7} {i}"}
            file.write(json.dumps({"custom_id": f"r{i}", "url": "/v1/completions", "body": body}) + "\n")
    return path


def batch(gateway: FakeGateway, *argv: str | Path) -> int:
    return main([*map(str, argv), "--base-url", gateway.url, "--no-progress"], {})


def errors_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "out.errors.jsonl").read_text().splitlines()]


def answers(path: Path) -> dict[str, Any]:
    """By custom_id; every id once."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert max(Counter(line["custom_id"] for line in lines).values(), default=1) == 1
    return {line["custom_id"]: line for line in lines}


def texts(path: Path) -> dict[str, str]:
    """What was answered, by custom_id."""
    return {name: line["response"]["body"]["choices"][0]["text"] for name, line in answers(path).items()}


def test_every_request_is_answered(gateway: FakeGateway, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", 500), tmp_path / "out.jsonl"
    assert batch(gateway, source, out, "--api-key", "secret") == 0
    assert texts(out) == {f"r{i}": f"prompt {i % 7} {i}" for i in range(500)}
    found = answers(out).values()
    assert all(line["response"]["request_id"].startswith("id-") and line["error"] is None for line in found)
    assert gateway.keys == {"Bearer secret"}
    assert not (tmp_path / "out.errors.jsonl").exists()
    assert batch(gateway, source, out) == 0
    assert len(gateway.seen) == 500  # the second run had nothing to do


def test_bad_lines_and_failures_go_to_the_error_file(
    gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    with source.open("a") as file:
        file.write('{"custom_id": "r3", "url": "/v1/completions", "body": {}}\nnonsense\n')
        file.write('{"custom_id": "r20", "url": "/v1/models", "body": {}}\n')
    gateway.rule = lambda body, n: (
        (400, {"error": {"message": "no"}}, {}) if body["prompt"].endswith(" 5") else echo(body, n)
    )
    assert batch(gateway, source, out) == 1
    shown = capsys.readouterr().err
    assert "line 22: it is not valid JSON" in shown
    assert "line 21: its custom_id was used by an earlier line" in shown
    assert "line 23: url must be one of /v1/chat/completions, " in shown
    assert "3 bad lines; see " in shown
    assert f"1 of the requests failed; see {tmp_path / 'out.errors.jsonl'}; --retry-failed sends them again." in shown
    errors = errors_in(tmp_path)
    assert [(e["custom_id"], e["error"]["code"], e["error"].get("line")) for e in errors] == [
        (None, "invalid_line", 22),
        ("r20", "invalid_line", 23),
        ("r3", "invalid_line", 21),
        ("r5", "http_400", None),
    ]
    assert errors[3]["response"]["body"] == {"error": {"message": "no"}}
    assert len(answers(out)) == 19

    gateway.rule = echo
    assert batch(gateway, source, out) == 1
    assert len(answers(out)) == 19
    assert batch(gateway, source, out, "--retry-failed") == 1  # the bad lines stay
    assert len(answers(out)) == 20


def test_back_pressure_broken_connections_and_5xx_are_tried_again(gateway: FakeGateway, tmp_path: Path) -> None:
    trouble: list[tuple[int, dict[str, str]]] = [(0, {}), (503, {"retry-after": "0.05"}), (429, {}), (500, {}), (0, {})]

    def rule(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        if trouble:
            status, headers = trouble.pop()
            return status, {}, headers
        return echo(body, number)

    gateway.rule = rule
    source, out = write(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    assert batch(gateway, source, out) == 0
    assert len(answers(out)) == 12
    assert len(gateway.seen) == 17


def test_what_always_breaks_fails_in_the_end(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.batch.run._FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("deploy.batch.run._REST_S", 0.01)
    gateway.rule = lambda body, n: (0, {}, {}) if body["prompt"].endswith(" 5") else (502, {}, {})
    source, out = write(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl"
    assert batch(gateway, source, out) == 1
    errors = {e["custom_id"]: e["error"]["code"] for e in errors_in(tmp_path)}
    assert errors == {"r5": "connection"} | {f"r{i}": "http_502" for i in range(5)}


def test_the_files_may_stand_behind_the_flags(gateway: FakeGateway, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    assert main(["--base-url", gateway.url, "--no-progress", str(source), str(out)], {}) == 0
    assert len(answers(out)) == 3


def test_never_more_in_flight_than_asked(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.delay_s = 0.005
    assert batch(gateway, write(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl", "--max-concurrency", "7") == 0
    assert gateway.most_in_flight == 7


def test_behind_a_full_queue_only_one_is_sent(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.waiting, gateway.delay_s = 500, 0.01
    assert batch(gateway, write(tmp_path / "in.jsonl", 9), tmp_path / "out.jsonl") == 0
    assert gateway.most_in_flight == 1


def test_standard_streams(gateway: FakeGateway, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", 9)
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "batch", "-", "-", "--base-url", gateway.url],
        input=source.read_bytes(),
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["custom_id"] for line in done.stdout.splitlines()} == {f"r{i}" for i in range(9)}


def test_a_pipe_is_read_like_standard_input(gateway: FakeGateway, tmp_path: Path) -> None:
    source, out, pipe = write(tmp_path / "in.jsonl", 9), tmp_path / "out.jsonl", tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_bytes(source.read_bytes()))
    thread.start()
    assert batch(gateway, pipe, out) == 0
    thread.join()
    assert set(answers(out)) == {f"r{i}" for i in range(9)}


def in_background() -> None:
    """As shells start what an & stands behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_sigterm_stops_it_and_the_next_run_goes_on(gateway: FakeGateway, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", 300), tmp_path / "out.jsonl"
    gateway.delay_s = 0.05
    command = [sys.executable, "-m", "deploy.cli", "batch", source, out, "--base-url", gateway.url]
    few = [*command, "--max-concurrency", "4"]
    with subprocess.Popen(few, stderr=subprocess.PIPE, text=True, preexec_fn=in_background) as process:
        while len(gateway.seen) < 40:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "canopy batch: stopped; run the same command to go on.\n"
    gateway.delay_s = 0.0
    assert batch(gateway, source, out) == 0
    assert set(answers(out)) == {f"r{i}" for i in range(300)}


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_killed_at_random_moments_and_run_again(gateway: FakeGateway, tmp_path: Path, kills: int) -> None:
    """The first kill comes before anything is sent, the others while requests are sent and answered."""
    count = 1000 * kills
    source, out = write(tmp_path / "in.jsonl", count), tmp_path / "out.jsonl"
    gateway.delay_s = 0.05
    command = [sys.executable, "-m", "deploy.cli", "batch", source, out, "--base-url", gateway.url, "--no-progress"]
    chance = random.Random(3)
    for number in range(kills):
        process = subprocess.Popen(command)
        enough = len(gateway.seen) + (chance.randrange(1, 600) if number else 0)
        while len(gateway.seen) < enough:
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < len(out.read_text().splitlines()) < count
    gateway.delay_s = 0.0
    assert subprocess.run(command, timeout=60).returncode == 0
    assert texts(out) == {f"r{i}": f"prompt {i % 7} {i}" for i in range(count)}


@pytest.mark.parametrize("away_s", [0.5, pytest.param(120.0, marks=pytest.mark.long)])
def test_a_gateway_that_goes_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away_s: float) -> None:
    monkeypatch.setattr("deploy.batch.run._FIRST_WAIT_S", 0.05)
    source, out = write(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    made = FakeGateway(delay_s=0.02)
    with made.running():

        def restart() -> None:
            while len(made.seen) < 100:
                time.sleep(0.002)
            asyncio.run_coroutine_threadsafe(made.stop(), made._loop).result(10)
            time.sleep(away_s)
            asyncio.run_coroutine_threadsafe(made.start(), made._loop).result(10)

        thread = threading.Thread(target=restart)
        thread.start()
        assert batch(made, source, out) == 0
        thread.join()
    assert set(answers(out)) == {f"r{i}" for i in range(400)}


def test_a_full_disk_ends_the_run_and_the_next_goes_on(
    gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write(tmp_path / "in.jsonl", 50), tmp_path / "out.jsonl"
    with files_no_longer_than(4000):
        assert batch(gateway, source, out) == 1
    assert f"Cannot write {out}: File too large; run the same command to go on." in capsys.readouterr().err
    before = out.read_bytes()
    assert 0 < len(answers(out)) < 50 and before.endswith(b"\n")
    assert batch(gateway, source, out) == 0
    assert out.read_bytes().startswith(before)
    assert texts(out) == {f"r{i}": f"prompt {i % 7} {i}" for i in range(50)}


def test_the_output_of_another_batch_is_left_alone(gateway: FakeGateway, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert batch(gateway, write(tmp_path / "in.jsonl", 9), out) == 0
    before = out.read_bytes()
    with pytest.raises(UserError, match="belongs to a batch with other requests; choose another output"):
        batch(gateway, write(tmp_path / "other.jsonl", 10), out)
    assert out.read_bytes() == before
    assert len(gateway.seen) == 9


def test_patience_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    nobody = ["--base-url", "http://127.0.0.1:9", "--patience-s", "0.3", "--no-progress"]
    assert main([str(source), str(out), *nobody], {}) == 1
    assert "has not answered for 0.3 s (--patience-s); run the same command to go on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "needs two files"),
        (["in.jsonl"], "needs two files"),
        (["a", "b", "c"], "takes two files, and 'c' is a third"),
        (["nothing.jsonl", "out.jsonl"], "There is no file nothing.jsonl"),
        (["in.jsonl", "nowhere/out.jsonl"], "choose another place"),
        (["in.jsonl", "out.jsonl", "--target-waiting", "0"], "target-waiting"),
        (["empty.jsonl", "out.jsonl"], "holds no requests"),
        (["in.jsonl", "in.jsonl"], "must be different files"),
        (["in.jsonl", "out.jsonl", "--error-file", "./in.jsonl"], "must be different files"),
        (["in.jsonl", "out.jsonl", "--error-file", "out.jsonl"], "must be different files"),
    ],
)
def test_faults_of_the_command_line(
    argv: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", 1)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match=sentence):
        main(argv, {})
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "empty.jsonl"}


@pytest.mark.parametrize(("status", "sentence"), [(401, "without a key"), (404, "is not a Canopy gateway's")])
def test_no_gateway_or_no_key(gateway: FakeGateway, tmp_path: Path, status: int, sentence: str) -> None:
    gateway.status_of_workers = status
    with pytest.raises(UserError, match=sentence):
        batch(gateway, write(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl")
    assert batch(gateway, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--no-steer") == 0
