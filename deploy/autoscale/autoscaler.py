"""The autoscaler of one model as the controller asks it (deploy/fleet/scaling.py): joins demand, policy and victim."""

from __future__ import annotations

from collections.abc import Sequence

from deploy.autoscale.demand import DemandMeter, Report
from deploy.autoscale.formulas import Targets
from deploy.autoscale.policy import Fleet, Rules, ScalingPolicy
from deploy.autoscale.victims import Candidate, least_valuable
from deploy.fleet.description import ModelDescription
from deploy.fleet.scaling import ReplicaView

_FRESH_S = 10.0  # a load report older than this tells nothing; replicas send one every two seconds


class LoadAutoscaler:
    """Implements Autoscaler."""

    def __init__(self, targets: Targets, rules: Rules, *, ttft_target_s: float | None = None) -> None:
        self._meter = DemandMeter(targets, stale_s=_FRESH_S, ttft_target_s=ttft_target_s)
        self._policy = ScalingPolicy(rules)

    def desired(self, replicas: Sequence[ReplicaView], current: int, now_s: float) -> int:
        ready = [replica for replica in replicas if replica.state == "ready"]
        reports = {r.incarnation: Report(now_s - r.load_age_s, r.load) for r in ready if r.load is not None}
        demand = self._meter.measure(now_s, [replica.incarnation for replica in ready], reports)
        return self._policy.tick(now_s, demand, _fleet(replicas), current)

    def victim(self, replicas: Sequence[ReplicaView]) -> str:
        candidates = [
            Candidate(
                replica_id=replica.replica_id,
                incarnation=replica.incarnation,
                ready=replica.state == "ready",
                running_requests=replica.load.running_requests if replica.load is not None else 0,
            )
            for replica in replicas
        ]
        chosen = least_valuable(candidates, self._meter.cache_values())
        assert chosen is not None
        return chosen.replica_id


def make_autoscaler(model: ModelDescription) -> LoadAutoscaler:
    """The autoscaler that a model's description asks for. Implements AutoscalerFactory."""
    wanted = model.autoscaling
    assert wanted is not None
    targets = Targets(prefill_share=wanted.prefill_share, token_usage=wanted.token_usage)
    rules = Rules(
        min_replicas=model.replicas.min,
        max_replicas=model.replicas.max,
        down_after_s=wanted.down_delay_s,
        ttft_goal=wanted.ttft_goal,
    )
    return LoadAutoscaler(targets, rules, ttft_target_s=wanted.ttft_s)


def _fleet(replicas: Sequence[ReplicaView]) -> Fleet:
    states = [replica.state for replica in replicas]
    return Fleet(
        ready=states.count("ready"),
        starting=states.count("starting") + states.count("failed"),
        draining=states.count("draining"),
    )
