"""What `canopy serve` prints."""

from __future__ import annotations

import io
import json
import shlex

from rich.console import Console

from common.fleet import ReplicaRecord
from deploy.local.progress import Progress, curl_line
from tests.helpers.clock import FakeClock


def record(state: str, **fields: object) -> ReplicaRecord:
    return ReplicaRecord(replica_id="replica-0", incarnation="a", url="http://u", model="m", state=state, **fields)  # type: ignore[arg-type]


def test_a_replica_is_mentioned_when_its_state_changes() -> None:
    out, clock = io.StringIO(), FakeClock()
    progress = Progress(clock, Console(file=out, width=200))
    for state, seconds in (("starting", 1.0), ("starting", 1.0), ("ready", 1.0), ("ready", 1.0)):
        clock.advance(seconds)
        progress.replicas([record(state)])
    progress.replicas([record("failed", message="its worker was killed by signal 9")])
    assert out.getvalue().splitlines() == [
        "[   1.0 s] replica-0: starting",
        "[   3.0 s] replica-0: ready at http://u",
        "[   4.0 s] replica-0: failed, its worker was killed by signal 9",
    ]


def test_without_a_terminal_waiting_is_told_every_ten_seconds() -> None:
    out, clock = io.StringIO(), FakeClock()
    progress = Progress(clock, Console(file=out, width=200))
    for _ in range(100):
        clock.advance(0.25)
        progress.waiting("0 of 2 replicas ready")
    progress.done_waiting()
    assert [line[:11] for line in out.getvalue().splitlines()] == ["[  10.0 s] ", "[  20.0 s] "]


def test_the_curl_line_is_one_request_whatever_the_model_is_called() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8000", "it's a $model"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's a $model"


def test_the_curl_line_takes_the_key_from_the_environment() -> None:
    line = curl_line("http://h:1", "m", needs_key=True)
    assert '"Authorization: Bearer $CANOPY_API_KEY"' in line
    assert len(shlex.split(line)) == len(shlex.split(curl_line("http://h:1", "m"))) + 2


def test_as_json_each_event_is_an_object() -> None:
    out, clock = io.StringIO(), FakeClock()
    progress = Progress(clock, Console(file=out, width=40, soft_wrap=True), log_format="json")
    progress.line("starting [bold]Ray[/bold]" + " and waiting" * 9)
    clock.advance(11.0)
    progress.waiting("0 of 2 replicas ready")
    progress.invitation("http://h:1", "m", "/logs")
    first, waiting, last = map(json.loads, out.getvalue().splitlines())
    assert first["message"] == "starting [bold]Ray[/bold]" + " and waiting" * 9
    assert (first["level"], first["process"]) == ("info", "canopy-serve")
    assert waiting["message"] == "0 of 2 replicas ready"
    assert last["message"] == "Serving m at http://h:1; logs in /logs"
