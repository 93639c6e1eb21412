"""Settings of `canopy tune`."""

from __future__ import annotations

from common.settings import Settings, option
from common.settings.types import JsonObject

_SOURCE, _OUTPUT = "Source", "Output"


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
    json_output: bool = option(False, "print JSON instead of text", category=_OUTPUT, aliases=["json"])
