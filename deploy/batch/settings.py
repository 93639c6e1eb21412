"""Settings of `canopy batch`."""

from __future__ import annotations

from common.settings import Settings, option
from deploy.batch.steering import HEALTHY_WAITING, TARGET_WAITING

_FILES, _SENDING, _FLEET = "Files", "Sending", "Fleet"


class BatchSettings(Settings):
    """Answer each request of IN once, in OUT: canopy batch IN OUT [flags]. Run it again to go on after a crash.
    Exit code 0 if all are answered, 1 if some failed, 130 if it was stopped."""

    input: str = option("", "file of requests, one JSON object a line; - for standard input", category=_FILES)
    output: str = option("", "file for the answers; - for standard output, which cannot be continued", category=_FILES)
    error_file: str | None = option(
        None,
        "file for bad lines and failed requests; default: OUT with .errors.jsonl in place of .jsonl",
        category=_FILES,
    )
    retry_failed: bool = option(False, "send those again that failed in an earlier run", category=_FILES)
    base_url: str = option("http://127.0.0.1:8000", "of the gateway", category=_SENDING, min_length=1)
    api_key: str | None = option(
        None, "for the gateway; its admin key where it has one", category=_SENDING, min_length=1
    )
    target_waiting: int = option(
        TARGET_WAITING,
        f"requests to keep waiting at each replica; the guide's band is {HEALTHY_WAITING[0]} to {HEALTHY_WAITING[1]}",
        category=_SENDING,
        ge=1,
        le=HEALTHY_WAITING[1],
    )
    max_concurrency: int = option(8192, "most requests in flight", category=_SENDING, ge=1)
    without_report: int = option(
        256, "requests in flight for each replica that reports no load", category=_SENDING, ge=1
    )
    steer: bool = option(True, "send by the replicas' load; off: always --max-concurrency at once", category=_SENDING)
    patience_s: float = option(
        1800, "seconds without any answer from the gateway after which the batch stops", category=_SENDING, gt=0
    )
    answer_timeout_s: float = option(3600, "seconds one answer may take", category=_SENDING, gt=0)
    progress: bool = option(True, "show progress on standard error", category=_SENDING)
    serve: str | None = option(
        None,
        "start a fleet for this batch: the arguments of canopy serve in one string, as 'demo --replicas 2'",
        category=_FLEET,
        min_length=1,
    )
