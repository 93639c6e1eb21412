"""Settings of `canopy tune`."""

from __future__ import annotations

from common.settings import Settings, option
from common.settings.types import JsonObject

_SOURCE, _OUTPUT, _TRIALS = "Source", "Output", "Experiments"


class TuneSettings(Settings):
    """Judge a fleet by the tuning guide: canopy tune [LOG ...] [flags]. Log files, or the fleet at --url."""

    url: str = option(
        "http://127.0.0.1:8000", "of a gateway or a worker whose metrics are watched", category=_SOURCE, min_length=1
    )
    api_key: str | None = option(None, "for its metrics", category=_SOURCE, min_length=1)
    window_s: float = option(60, "seconds to watch", category=_SOURCE, gt=0, aliases=["window"])
    facts: JsonObject | None = option(
        None, 'what neither says, as JSON: {"cuda_graph_max_bs": 256, "gpu_gb": 141}', category=_SOURCE
    )
    apply: bool = option(
        False, "try changes on a canary replica of a running fleet, and keep those that help", category=_TRIALS
    )
    model: str = option("", "name of the model; not needed where the fleet has one", category=_TRIALS)
    address: str | None = option(
        None,
        "Ray address of a fleet elsewhere; without it RAY_ADDRESS, else this machine's",
        category=_TRIALS,
        min_length=1,
    )
    experiments: int = option(6, "bound on experiments", category=_TRIALS, ge=1, le=100)
    trial_window_s: float = option(
        20, "seconds of one comparison; longer than most answers take", category=_TRIALS, gt=0, aliases=["trial-window"]
    )
    max_trial_windows: int = option(20, "comparisons of one experiment at most", category=_TRIALS, ge=4, le=1000)
    in_place: bool = option(
        False, "the canary takes the place of a replica, where there is no room for one more", category=_TRIALS
    )
    journal: str = option(
        "canopy-tune.jsonl", "file to which each experiment adds a line; empty: none", category=_TRIALS, path=True
    )
    json_output: bool = option(False, "print JSON instead of text", category=_OUTPUT, aliases=["json"])
