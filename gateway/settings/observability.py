"""What the gateway tells about itself: logs, traces, the console."""

from __future__ import annotations

from functools import partial
from typing import Literal

from common.settings import option
from common.tracing.settings import TracingSettings

_option = partial(option, category="Observability")


class ObservabilitySettings(TracingSettings):
    """Logs, traces and the console."""

    access_log: bool = _option(False, "one log line per generation request")
    log_level: Literal["debug", "info", "warning", "error"] = _option("info", "log level")
    log_format: Literal["text", "json"] = _option("text", "log lines as text or one JSON object each")
    tuning_interval_s: float = _option(
        5.0, "seconds between two looks at each worker's metrics, for /tuning; 0 = none", ge=0
    )
    tuning_window_s: float = _option(300.0, "seconds of the past that /tuning judges", gt=0, le=86_400)
    console: bool = _option(True, "serve the live page at /console")
