"""The `canopy` command as users meet it: help, refusals in one sentence, exit code 2, nothing left running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from common.errors import UserError
from deploy import bench, cli

ROOT = Path(__file__).parents[2]


def canopy(*args: str, cache: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, with its temporary files and cache below `cache`."""
    temporary = cache / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {**os.environ, "CANOPY_CACHE": str(cache), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "deploy.cli", *args]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60)


def refusal(*args: str, cache: Path) -> str:
    """The one sentence of a command that must be refused."""
    done = canopy(*args, cache=cache)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert list((cache / "tmp").iterdir()) == []
    assert not list((cache / "fleets").glob("*"))
    return done.stderr.strip()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Passes the launcher's look at it; no replica is ever started on it."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"architectures": ["Unheard"]}')
    return path


def test_help_lists_what_exists_and_only_that(tmp_path: Path) -> None:
    done = canopy("--help", cache=tmp_path)
    assert done.returncode == 0
    for command in ("serve", "gateway", "worker", "status", "plan", "bench"):
        assert f"\n  {command} " in done.stdout
    assert "doctor" not in done.stdout


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"canopy {metadata.version('canopy-serve')}\n"


def test_help_imports_neither_torch_nor_ray() -> None:
    check = (
        "import sys, deploy.cli; deploy.cli.main(['--help']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'transformers', 'fastapi', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("command", ["serve", "gateway", "worker", "status", "plan", "bench", "bench offline"])
def test_every_command_has_a_help_page(command: str, tmp_path: Path) -> None:
    done = canopy(*command.split(), "--help", cache=tmp_path)
    assert done.returncode == 0
    assert f"usage: canopy {command}" in done.stdout


def test_serve_offers_the_flags_of_all_parts(tmp_path: Path) -> None:
    text = canopy("serve", "--help", cache=tmp_path).stdout
    for flag in ("--replicas", "--policy", "--max-running-requests", "--port"):
        assert f"\n  {flag}" in text
    assert "--worker-urls" not in text


def test_commands_that_are_not_built_say_so(tmp_path: Path) -> None:
    assert refusal("doctor", cache=tmp_path) == "canopy: `canopy doctor` is not built yet."
    assert refusal("serv", cache=tmp_path) == "canopy: There is no command 'serv'; see canopy --help."


def test_the_offline_benchmark_measures_the_simulated_engine(tmp_path: Path) -> None:
    flags = ("--workload", "single", "--device", "sim", "--log-level", "warning", "--json")
    done = canopy("bench", "offline", *flags, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)["outcomes"]
    assert (outcome["workload"], outcome["steps"]) == ("single", 256)
    assert outcome["seconds"] > 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("speed",), "canopy: canopy bench has no program 'speed'; it has offline, kernels, serve, report, router."),
        (("offline", "--workload", "lots"), "canopy: --workload: invalid choice: 'lots'"),
        (("offline", "--schedule-policy", "best"), "canopy: --schedule-policy must be "),
        (("offline", "--workload", "single", "--model-path", "/no/model"), "canopy: "),
    ],
)
def test_benchmarks_refuse_in_one_sentence(flags: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert refusal("bench", *flags, cache=tmp_path).startswith(sentence)


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="needs a machine without a GPU")
def test_the_kernel_benchmark_needs_a_gpu(tmp_path: Path) -> None:
    assert refusal("bench", "kernels", cache=tmp_path).startswith("canopy: canopy bench kernels needs a GPU")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing, sentence in (("benchmarks", "not installed with this copy"), ("triton", "needs the package triton")):

        def fail(name: str, missing: str = missing) -> None:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

        monkeypatch.setattr(bench.importlib, "import_module", fail)
        with pytest.raises(UserError, match=sentence):
            bench.main(["offline"])


@pytest.mark.parametrize(("command", "code"), [("bench", 130), ("tune", 130), ("gateway", 0)])
def test_ctrl_c_is_told_from_an_end(command: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_command", lambda name: stopped)
    assert cli.main([command]) == code


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("[2026-01-05 10:00:00] CUDA out of memory\n")
    command = [sys.executable, "-m", "deploy.cli", "tune", str(log), "--json"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as done:
        assert done.stdout is not None and done.stderr is not None
        done.stdout.close()
        assert (done.stderr.read(), done.wait(60)) == (b"", 141)


def test_a_model_path_that_does_not_exist(tmp_path: Path) -> None:
    sentence = refusal("serve", str(tmp_path / "nothing"), cache=tmp_path)
    assert sentence.startswith(f"canopy: There is no model at {tmp_path}/nothing;")


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    sentence = refusal("serve", str(tmp_path), cache=tmp_path)
    assert sentence == f"canopy: {tmp_path} is not a model directory: it holds no config.json."


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("not a model")
    assert refusal("serve", str(path), cache=tmp_path).startswith(f"canopy: {path} is not a GGUF file;")


def test_a_damaged_gguf_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(range(100)))
    done = canopy("serve", str(path), "--port", "0", cache=tmp_path)
    assert done.returncode == 2
    assert f"canopy: {path} is damaged or not a GGUF file" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_taken_port(tmp_path: Path, model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refusal("serve", str(model_dir), "--port", str(port), cache=tmp_path)
    assert sentence.startswith(f"canopy: Cannot listen on 127.0.0.1:{port}: address already in use;")


def test_faults_of_the_replicas_settings_are_found_before_ray_starts(tmp_path: Path, model_dir: Path) -> None:
    sentence = refusal("serve", str(model_dir), "--chat-template", "nope", cache=tmp_path)
    assert sentence.startswith("canopy: --chat-template: 'nope' is no file and no built-in template")


def test_an_unknown_flag(tmp_path: Path, model_dir: Path) -> None:
    sentence = refusal("serve", str(model_dir), "--replica", "2", cache=tmp_path)
    assert sentence == "canopy: --replica is not a flag of canopy serve; did you mean --replicas?"


def test_status_without_a_fleet(tmp_path: Path) -> None:
    done = canopy("status", cache=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No fleet runs on this machine" in done.stderr
    assert canopy("status", "--json", cache=tmp_path).stdout.strip() == "[]"


def test_the_user_directory_is_not_searched_for_our_packages(tmp_path: Path, model_dir: Path) -> None:
    """A project of the user may well have a folder called `worker` or `deploy`."""
    for name in ("worker", "gateway", "common"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported the wrong package')")
    script = Path(sys.executable).with_name("canopy")
    done = subprocess.run(
        [script, "serve", str(model_dir), "--replicas", "0"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.startswith("canopy: --replicas must be ")
