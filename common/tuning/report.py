"""Findings as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from common.tuning.finding import Finding, Verdict
from common.tuning.observation import Observation

Judged = Sequence[tuple[Observation, Sequence[Finding]]]

_MARKS = {Verdict.HEALTHY: "ok    ", Verdict.CHANGE: "CHANGE", Verdict.NOTE: "note  ", Verdict.UNKNOWN: "?     "}


def as_text(judged: Judged) -> str:
    """One block a replica; equal advice of several replicas once more at the end, as a command line."""
    blocks = [_block(seen, findings) for seen, findings in judged]
    flags = _flags(judged)
    if flags:
        changed = " ".join(f"--{name} {value}" for name, value in flags.items())
        blocks.append(f"Flags to change, one at a time, watching again after each: {changed}")
    elif any(finding.verdict is Verdict.CHANGE for _, findings in judged for finding in findings):
        blocks.append("No flag's new value can be given; what is marked CHANGE says what to do.")
    else:
        blocks.append("No flag needs a change.")
    return "\n\n".join(blocks)


def as_json(judged: Judged) -> str:
    """Everything that the text says, and the numbers behind it."""
    return json.dumps(as_object(judged), indent=2)


def as_object(judged: Judged) -> dict[str, Any]:
    """The same as an object that JSON can hold."""
    replicas = [
        {
            "replica": seen.replica,
            "minutes": seen.minutes,
            "samples": len(seen.samples),
            "median_running": seen.running,
            "median_waiting": seen.queued,
            "median_token_usage": seen.usage,
            "retractions": seen.retractions,
            "hit_rate": seen.hit_rate,
            "findings": [_fields(finding) for finding in findings],
        }
        for seen, findings in judged
    ]
    return {"replicas": replicas, "flags": _flags(judged)}


def _block(seen: Observation, findings: Sequence[Finding]) -> str:
    window = f"{seen.minutes:.1f} minutes, " if seen.minutes else ""
    lines = [f"{seen.replica}: {window}{len(seen.samples)} samples"]
    for finding in findings:
        lines.append(f"  {_MARKS[finding.verdict]} [{finding.rule:2}] {finding.saw}. {finding.means}")
        if finding.flags:
            changed = " ".join(f"--{name} {value}" for name, value in finding.flags.items())
            lines.append(f"              {changed} (confidence {finding.confidence:.0%})")
    return "\n".join(lines)


def _flags(judged: Judged) -> dict[str, str]:
    """Of each flag the value that the most confident finding gives."""
    best: dict[str, tuple[float, str]] = {}
    for _, findings in judged:
        for finding in findings:
            for name, value in finding.flags.items():
                if finding.confidence > best.get(name, (0.0, ""))[0]:
                    best[name] = (finding.confidence, value)
    return {name: value for name, (_, value) in best.items()}


def _fields(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"verdict": finding.verdict.value, "flags": dict(finding.flags)}
