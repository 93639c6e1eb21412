"""How a replica ends: on request, when half of it dies, when it could not start. Nothing stays behind, each time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.helpers.background_stream import BackgroundStream
from tests.helpers.processes import wait_until
from tests.helpers.replica_process import replica


def test_sigterm_lets_running_requests_finish(chat_model: Path, tmp_path: Path) -> None:
    with replica(chat_model, tmp_path) as server:
        stream = BackgroundStream(server, 1500)
        server.signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503, 5, "it says it is stopping")
        refused = httpx.post(f"{server.url}/generate", json={"text": "a"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        *_, last, done = stream.events()
        assert '"finish_reason":"length"' in last and done == "[DONE]"
        assert server.exit_code() == 0
        assert "Traceback" not in server.log and "ERROR" not in server.log


def test_what_outlasts_the_grace_is_told_so(chat_model: Path, tmp_path: Path) -> None:
    with replica(chat_model, tmp_path, "--shutdown-grace-s", "0.2") as server:
        stream = BackgroundStream(server, 4000)
        server.signal(signal.SIGINT)
        events = stream.events()
        assert "The server is shutting down." in events[-1] and "[DONE]" not in stream.text
        assert server.exit_code() == 0


def test_a_killed_scheduler_ends_streams_with_an_error_and_the_replica(chat_model: Path, tmp_path: Path) -> None:
    with replica(chat_model, tmp_path) as server:
        streams = [BackgroundStream(server, 4000) for _ in range(3)]
        os.kill(server.scheduler_pid, signal.SIGKILL)
        for stream in streams:
            *_, last = stream.events()
            assert last.startswith('{"error":') and "killed by SIGKILL" in last
            assert "[DONE]" not in stream.text
        assert server.exit_code() == 1
        assert "ERROR The scheduler process was killed by SIGKILL." in server.log
        assert "Traceback" not in server.log


def test_a_killed_frontend_takes_its_scheduler_along(chat_model: Path, tmp_path: Path) -> None:
    with replica(chat_model, tmp_path) as server:
        assert len(server.tree()) == 2
        server.signal(signal.SIGKILL)
        server.process.wait()
    # leaving the block checks that the scheduler and the temporary files are gone


def test_sigterm_while_loading(chat_model: Path, tmp_path: Path) -> None:
    with replica(chat_model, tmp_path, wait=False) as server:
        wait_until(lambda: "Loading" in server.log, 60, "it loads")
        time.sleep(0.5)  # anywhere in the seconds that loading takes
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert "Traceback" not in server.log


def run(*flags: str) -> tuple[int, str]:
    """Run a worker that cannot start: exit code and stderr."""
    command = [sys.executable, "-m", "worker", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def last_line(stderr: str) -> str:
    """What the user sees last, above it are the log and progress."""
    assert "Traceback" not in stderr
    return stderr.splitlines()[-1]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    code, stderr = run("--model-path", str(tmp_path / "nowhere"), "--port", "0")
    assert code == 2, stderr
    assert stderr == f"canopy worker: --model-path {tmp_path}/nowhere does not exist.\n"


def test_a_gguf_file_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a gguf file")
    code, stderr = run("--model-path", str(file), "--port", "0")
    assert code == 2, stderr
    assert str(file) in last_line(stderr)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    code, stderr = run("--model-path", str(tmp_path), "--port", "0", "--device", "cpu")
    assert code == 2, stderr
    assert "config.json" in last_line(stderr)


def test_a_model_without_a_tokenizer(chat_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(chat_model / name)
    code, stderr = run("--model-path", str(tmp_path), "--port", "0", "--device", "cpu", "--cpu-threads", "1")
    assert code == 2, stderr
    assert last_line(stderr).startswith(f"canopy worker: Cannot load a tokenizer from {tmp_path}")


def test_a_taken_port_is_told_before_anything_is_loaded(chat_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = run("--model-path", str(chat_model), "--port", str(port))
    assert code == 2, stderr
    assert stderr == (
        f"canopy worker: Cannot listen on 127.0.0.1:{port}: address already in use; choose another --port or --host.\n"
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--model-path is required."),
        (
            ["--model-path", "x", "--port", "70000"],
            "--port must be at most 65535 (got '70000').",
        ),
        (["--model-path", "x", "--what"], "--what is not a flag of canopy worker; see canopy worker --help."),
    ],
)
def test_bad_settings(flags: list[str], sentence: str) -> None:
    assert run(*flags) == (2, f"canopy worker: {sentence}\n")
