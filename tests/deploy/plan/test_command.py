"""`canopy plan` as users call it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.cli import main
from tests.helpers.processes import assert_all_end, wait_until

LOAD = ["plan", "--rate", "2", "--hours", "0.002", "--prompt-tokens", "100", "--output-tokens", "4", "--jobs", "1"]


def faults(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The sentence of a fault."""
    assert main(["plan", *argv]) == 2
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.jsonl", "--slo", "ttft_p90=1s"], "TRACE: cannot read nowhere.jsonl: No such file or directory."),
        (["--slo", "ttft_p90=1s"], "There is no load"),
        (["--rate", "1"], "--slo is missing"),
        (["--rate", "1", "--slo", "fast"], "--slo 'fast' is no target"),
        (["--rate", "1", "--replicas", "9-3"], "--replicas '9-3' is no size"),
        (["--rate", "1", "--replicas", "2", "--sim-profile", "h300"], "there is no profile h300"),
        (["--rate", "1", "--replicas", "2", "--prompt-tokens", "some"], "--prompt-tokens 'some' is no length"),
        (["--rate", "1", "--replicas", "2", "--vary", "speed=1"], "--vary 'speed=1'"),
        (["--rate", "1", "--replicas", "2", "--vary", "policy=cache_aware,psychic"], "--policy 'psychic' is unknown"),
        (["--rate", "1", "--replicas", "2", "--plot", "/nowhere/x.svg"], "there is no directory /nowhere"),
        (["--rate", "1", "--replicas", "2", "--plot", "x.png"], "the picture is SVG"),
        (["--rate", "-1"], "--rate"),
        (["--rat", "1"], "--rat is not a flag of canopy plan"),
    ],
)
def test_faults_are_one_sentence(capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    sentence = faults(capsys, *argv)
    assert said in sentence and "\n" not in sentence


def test_a_trace_and_a_description_are_too_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,2\n")
    assert "--rate describes a load" in faults(capsys, str(trace), "--rate", "1", "--replicas", "1")


def test_the_answer_is_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plan.svg"
    assert main([*LOAD, "--slo", "ttft_p90=1s", "tpot_p50=1s", "--replicas", "1-4", "--plot", str(plot)]) == 0
    told = capsys.readouterr().out
    assert (
        "1 replica keeps all targets: 0.00 replica-hours for 0.00 h." in told
        and "all of them run in virtual time" in told
    )
    picture = plot.read_text()
    assert "1 is enough" in picture and "Time to first token: at most 1 s for 90 %" in picture
    assert "prefers-color-scheme: dark" in picture and "#0a0" not in picture  # every colour has its variable
    impossible = [*LOAD, "--slo", "ttft_p90=1ms", "--replicas", "1-2", "--vary", "policy=random,round_robin", "--json"]
    assert main(impossible) == 2
    told = capsys.readouterr()
    assert "No size up to 2 keeps all targets: with 2 replicas ttft_p90=1ms is kept by 0.0%" in told.err
    fleets = json.loads(told.out)["fleets"]
    assert [(fleet["settings"], fleet["replicas"]) for fleet in fleets] == [
        ("policy=random", 1),
        ("policy=random", 2),
        ("policy=round_robin", 1),
        ("policy=round_robin", 2),
    ]
    assert all(fleet["ttft_p90_s"] > 0.001 and not fleet["enough"] for fleet in fleets)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_plan_leaves_no_trials(number: signal.Signals) -> None:
    load = ["--rate", "50", "--hours", "5", "--sample-requests", "0", "--slo", "ttft_p90=1s", "--jobs", "2"]
    with subprocess.Popen([sys.executable, "-m", "deploy.cli", "plan", *load]) as plan:
        me = psutil.Process(plan.pid)
        wait_until(lambda: len(me.children()) == 3, 60, "two trials and their tracker run")
        children = [child.pid for child in me.children()]
        plan.send_signal(number)
    assert_all_end(children, 10)
