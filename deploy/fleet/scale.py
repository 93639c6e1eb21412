"""`canopy scale [MODEL] N`: changes how many replicas a model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from common.clock import MonotonicClock
from common.errors import UserError
from common.settings import Settings, load, option
from deploy.fleet.apply import wait_until_reached
from deploy.fleet.client import answer_to, connected, controller_of, only_fleet
from deploy.local.progress import Progress

_USAGE = "canopy scale [MODEL] N"


class ScaleSettings(Settings):
    """Change how many replicas a model has: canopy scale [MODEL] N. Replicas that leave finish their requests first."""

    replicas: int = option(..., "replicas to have", category="Scale", ge=1)
    model: str = option("", "name of the model; not needed where the fleet has one", category="Scale")
    address: str | None = option(
        None,
        "Ray address of a fleet elsewhere; without it RAY_ADDRESS, else this machine's",
        category="Scale",
        min_length=1,
    )
    wait: bool = option(True, "wait until they are there", category="Scale")


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Scale one model. Returns the exit code."""
    settings = load(ScaleSettings, with_flags(argv), env, prog="canopy scale").settings
    fleet = only_fleet(settings.address, env)
    progress = Progress(MonotonicClock())
    with connected(fleet):
        controller = controller_of(fleet)
        for line in answer_to(controller.scale.remote(settings.model, settings.replicas)):
            progress.line(line)
        return wait_until_reached(controller, progress) if settings.wait else 0


def with_flags(argv: Sequence[str]) -> list[str]:
    """The same with MODEL and N as flags."""
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    rest = list(argv[len(words) :])
    if len(words) > 2:
        raise UserError(f"There is a word too many: {_USAGE}.")
    names = ["--replicas"] if len(words) == 1 else ["--model", "--replicas"]
    return [*(part for pair in zip(names, words, strict=False) for part in pair), *rest]
