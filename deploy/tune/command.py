"""`canopy tune [LOG ...]`: from arguments to a judgement."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from common.errors import UserError
from common.settings import load
from common.tuning.judge import judge
from common.tuning.observation import Facts, Observation
from common.tuning.report import as_json, as_text
from deploy.tune.logs import read_log
from deploy.tune.metrics import watch
from deploy.tune.settings import TuneSettings


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Print what was seen, what it means and what to change. Returns 0. Raises UserError."""
    logs = _leading_words(argv)
    settings = load(TuneSettings, argv[len(logs) :], env, prog="canopy tune").settings
    facts = _facts(settings.facts or {})
    if settings.apply:
        from deploy.tune.trials.command import apply  # needs Ray

        if logs:
            raise UserError("--apply experiments with a running fleet: leave the log files out.")
        return apply(settings, facts, env)
    seen = [read_log(Path(log), facts) for log in logs] if logs else _watched(settings, facts)
    judged = [(observation, judge(observation)) for observation in seen]
    print(as_json(judged) if settings.json_output else as_text(judged))
    return 0


def _leading_words(argv: Sequence[str]) -> list[str]:
    words: list[str] = []
    for word in argv:
        if word.startswith("-"):
            break
        words.append(word)
    return words


def _watched(settings: TuneSettings, facts: Facts) -> list[Observation]:
    headers = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    shown = sys.stderr.isatty()

    def tick(passed_s: float) -> None:
        if shown:
            print(f"\rwatching {settings.url}, {passed_s:.0f} of {settings.window_s:.0f} s", end="", file=sys.stderr)

    try:
        return watch(settings.url.rstrip("/"), headers, facts, seconds=settings.window_s, tick=tick)
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr)


def _facts(given: Mapping[str, Any]) -> Facts:
    unknown = sorted(set(given) - set(Facts.__dataclass_fields__))
    if unknown:
        known = ", ".join(sorted(Facts.__dataclass_fields__))
        raise UserError(f"--facts: there is no fact {unknown[0]!r}; there are {known}.")
    try:
        return msgspec.convert(dict(given), Facts)
    except msgspec.ValidationError as error:
        raise UserError(f"--facts: {error}.") from None
