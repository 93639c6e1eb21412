"""A real fleet under `canopy serve`: it serves, survives the death of any process, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.helpers.processes import assert_all_end, wait_until
from tests.helpers.served_fleet import ServedFleet

pytestmark = pytest.mark.ray

NAME = "tiny-chat"  # the model's directory

RESTART_LIMIT_S = 120.0
STREAMS = 20


def chat_body(*, max_tokens: int, stream: bool = False) -> dict[str, Any]:
    question = [{"role": "user", "content": "hi"}]
    return {"model": NAME, "messages": question, "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}


def chat(fleet: ServedFleet, *, max_tokens: int = 8) -> httpx.Response:
    body = chat_body(max_tokens=max_tokens)
    return httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)


def read_stream(fleet: ServedFleet, lines: list[str]) -> None:
    """Append the events of one long streamed answer as they come."""
    body = chat_body(max_tokens=400, stream=True)
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=60, trust_env=False) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line:
                lines.append(line)


def workers(fleet: ServedFleet) -> list[dict[str, Any]]:
    """What the gateway knows."""
    answer = httpx.get(f"{fleet.url}/workers", timeout=10, trust_env=False)
    return list(answer.json()["workers"])


def ready_incarnations(fleet: ServedFleet) -> set[str]:
    try:
        return {w["incarnation"] for w in workers(fleet) if w["state"] == "ready"}
    except httpx.HTTPError:
        return set()


def replica_processes(fleet: ServedFleet, replica: dict[str, Any]) -> dict[str, psutil.Process]:
    frontend = psutil.Process(replica["status"]["record"]["pid"])
    guard = frontend.parent()
    assert guard is not None
    actor = guard.parent()
    assert actor is not None
    return {"frontend": frontend, "scheduler": frontend.children()[0], "guard": guard, "actor": actor}


def test_the_printed_curl_line_works(served_fleet: ServedFleet) -> None:
    line = re.search(r"^  (curl .*)$", served_fleet.text, re.MULTILINE)
    assert line
    words = shlex.split(line[1])
    url, body = words[1], words[-1]
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0


def test_status_shows_both_replicas(served_fleet: ServedFleet) -> None:
    replicas = served_fleet.status()
    records = [r["status"]["record"] for r in replicas]
    assert [(r["replica_id"], r["state"], r["model"]) for r in records] == [
        ("replica-0", "ready", NAME),
        ("replica-1", "ready", NAME),
    ]
    assert all(r["load"]["running_requests"] == 0 for r in replicas)
    assert {r["incarnation"] for r in records} == ready_incarnations(served_fleet)
    for record in records:
        assert httpx.get(f"{record['url']}/health", trust_env=False).status_code == 200


def test_status_prints_a_table(served_fleet: ServedFleet) -> None:
    done = served_fleet.run_status()
    assert done.returncode == 0
    title, _, head, *rows = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert title == f"{NAME} at {served_fleet.url}"
    assert [row.split()[:2] for row in (head, *rows)][-2:] == [["replica-0", "ready"], ["replica-1", "ready"]]
    assert len(rows) >= 2


def test_a_stranger_without_the_token_is_turned_away(served_fleet: ServedFleet, tmp_path: Path) -> None:
    fleet_file = next((Path(served_fleet.env["CANOPY_CACHE"]) / "fleets").glob("*.json"))
    assert fleet_file.stat().st_mode & 0o077 == 0
    address = json.loads(fleet_file.read_text())["ray_address"]
    done = served_fleet.run_status("--address", address, CANOPY_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"canopy: Cannot ask the Ray at {address}: ")
    assert done.stderr.count("\n") == 1


def test_no_prompt_or_secret_shows_in_the_process_list(served_fleet: ServedFleet) -> None:
    token_files = list(Path(served_fleet.tree().with_command("deploy.local.fleet")[0].cwd()).glob("ray-token"))
    assert len(token_files) == 1
    assert token_files[0].stat().st_mode & 0o077 == 0
    token = token_files[0].read_text()
    assert not served_fleet.tree().with_command(token)


@pytest.mark.parametrize(
    "victim", ["scheduler", *(pytest.param(other, marks=pytest.mark.ray_cluster) for other in ("frontend", "actor"))]
)
def test_a_killed_process_ends_its_streams_and_a_new_replica_serves(served_fleet: ServedFleet, victim: str) -> None:
    before = served_fleet.status()
    killed = before[0]["status"]["record"]
    processes = replica_processes(served_fleet, before[0])
    with ThreadPoolExecutor(STREAMS) as pool:
        texts: list[list[str]] = [[] for _ in range(STREAMS)]
        streams = [pool.submit(read_stream, served_fleet, text) for text in texts]
        wait_until(lambda: all(texts), 30, "all streams run")
        lost = next(w["in_flight"] for w in workers(served_fleet) if w["incarnation"] == killed["incarnation"])
        began_s = time.monotonic()
        processes[victim].kill()
        assert_all_end([processes[name].pid for name in ("frontend", "scheduler", "guard")], 2)
        assert [chat(served_fleet, max_tokens=2).status_code for _ in range(5)] == [200] * 5
        for stream in streams:
            stream.result()
    cut = [text for text in texts if text[-1] != "data: [DONE]"]
    assert 0 < lost == len(cut) < STREAMS
    assert all(text[-1].startswith('data: {"error":') and "data: [DONE]" not in text for text in cut)
    wait_until(
        lambda: len(ready_incarnations(served_fleet) - {killed["incarnation"]}) == 2,
        RESTART_LIMIT_S,
        "two replicas, one of them new, are ready at the gateway",
    )
    print(f"{victim}: serving again after {time.monotonic() - began_s:.1f} s")
    after = served_fleet.status()
    assert after[0]["status"]["record"]["restarts"] == killed["restarts"] + 1
    assert after[1]["status"]["record"] == before[1]["status"]["record"]


def records(fleet: ServedFleet) -> list[dict[str, Any]]:
    """Without the verdict on crashes, which a new controller has not seen."""
    found: list[dict[str, Any]] = [dict(r["status"]["record"]) for r in fleet.status()]
    for record in found:
        del record["crash_looping"]
    return found


def test_a_killed_controller_costs_nothing(served_fleet: ServedFleet) -> None:
    before = records(served_fleet)
    (controller,) = served_fleet.tree().with_command("ray::ControllerActor")
    controller.kill()
    for _ in range(10):
        assert chat(served_fleet).status_code == 200

    def adopted() -> bool:
        return bool(served_fleet.tree().with_command("ray::ControllerActor"))

    wait_until(adopted, RESTART_LIMIT_S, "Ray has restarted the controller")
    wait_until(lambda: records(served_fleet) == before, RESTART_LIMIT_S, "the new controller has adopted both replicas")


def test_a_killed_gateway_is_started_again(served_fleet: ServedFleet) -> None:
    guard = next(p for p in served_fleet.tree().with_command("-m gateway") if "deploy.guard" in p.cmdline())
    guard.children()[0].kill()
    wait_until(lambda: len(ready_incarnations(served_fleet)) == 2, 30, "the gateway knows both replicas again")
    assert chat(served_fleet).status_code == 200
    assert "gateway: started again" in served_fleet.text


def test_ctrl_c_lets_a_running_stream_finish_and_leaves_nothing(served_fleet: ServedFleet) -> None:
    """The last test of this fleet."""
    body = chat_body(max_tokens=100, stream=True)
    with (
        ThreadPoolExecutor(1) as pool,
        httpx.stream(
            "POST", f"{served_fleet.url}/v1/chat/completions", json=body, timeout=60, trust_env=False
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        ending = pool.submit(served_fleet.end, signal.SIGINT)
        rest = [line for line in lines if line]
        assert ending.result() == 0
    assert rest[-1] == "data: [DONE]"
    port = int(served_fleet.url.rpartition(":")[2])
    socket.create_server(("127.0.0.1", port)).close()
    cache = Path(served_fleet.env["CANOPY_CACHE"])
    assert list((cache / "fleets").iterdir()) == []
    assert sorted(p.name for p in (cache / "logs" / f"port-{port}").iterdir()) == [
        "gateway.log",
        "ray.log",
        "replica-0.log",
        "replica-1.log",
    ]


@pytest.mark.parametrize("victim", ["launcher", pytest.param("raylet", marks=pytest.mark.ray_cluster)])
def test_nothing_outlives_the_death_of_what_holds_it_together(
    victim: str, tmp_path: Path, tiny_chat_model: Path
) -> None:
    """During the start, when most is in flux."""
    fleet = ServedFleet(str(tiny_chat_model), "--port", "0", cache=tmp_path, stand_in=True)
    try:
        wait_until(lambda: "replica-0: starting" in fleet.text, 90, "the replica is starting")
        tree = fleet.tree()
        inner = tree.with_command("deploy.local.fleet")
        (raylet,) = [p for p in tree.processes if p.name() == "raylet"]
        process = {"launcher": tree.processes[0], "raylet": raylet}[victim]
        run_dir = Path(inner[0].cwd())
        process.kill()
        assert_all_end(tree.pids, 10)
        wait_until(lambda: not run_dir.exists(), 5, "its directory is removed")
        assert fleet.wait() == {"launcher": -signal.SIGKILL, "raylet": 1}[victim]
        if victim == "raylet":
            assert "canopy: Ray's raylet has ended" in fleet.text
    finally:
        fleet.kill()


@pytest.mark.parametrize(
    ("behaviour", "code"), [pytest.param("refuse", 2, marks=pytest.mark.ray_cluster), ("crash", 1)]
)
def test_a_replica_that_cannot_start_ends_the_start(
    behaviour: str, code: int, tmp_path: Path, tiny_chat_model: Path
) -> None:
    fleet = ServedFleet(
        str(tiny_chat_model), "--served-model-name", behaviour, "--port", "0", cache=tmp_path, stand_in=True
    )
    try:
        assert fleet.wait() == code
        if behaviour == "refuse":
            assert fleet.text.splitlines()[-1] == "canopy: --model-path: there is no such model."
        else:
            assert "canopy: replica-0 does not start: crash loop, 3 short lives in a row" in fleet.text
            assert fleet.text.endswith("  boom\n")
        assert "Traceback" not in fleet.text
        assert list((tmp_path / "fleets").iterdir()) == []
    finally:
        fleet.kill()
