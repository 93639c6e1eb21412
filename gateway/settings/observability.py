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
    console: bool = _option(True, "serve the live page at /console")
