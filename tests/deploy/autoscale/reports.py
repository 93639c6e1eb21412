"""Reports and views as a controller would hand them to an autoscaler."""

from __future__ import annotations

from typing import Any

from deploy.fleet.scaling import ReplicaLoad, ReplicaView

BOUNDS_S = [1.0, 2.0, 4.0]


def load(incarnation: str = "a", **changes: Any) -> ReplicaLoad:
    """An idle replica's, with changes."""
    idle: dict[str, Any] = {
        "incarnation": incarnation,
        "max_total_tokens": 100_000,
        "max_running_requests": 100,
        "ttft_bounds_s": BOUNDS_S,
        "ttft_counts": [0, 0, 0, 0],
    }
    return ReplicaLoad(**{**idle, **changes})


def view(incarnation: str = "a", state: Any = "ready", *, age_s: float = 0.0, **changes: Any) -> ReplicaView:
    """A replica with a load report, if it is ready."""
    return ReplicaView(
        replica_id=f"replica-{incarnation}",
        incarnation=incarnation,
        state=state,
        state_for_s=0.0,
        url=f"http://{incarnation}:80" if state == "ready" else "",
        load=load(incarnation, **changes) if state == "ready" else None,
        load_age_s=age_s,
    )
