"""How many replicas there should be: up at once, down slowly. Pure: time and demand go in, a number comes out.

Formulas and their units: deploy/autoscale/formulas.py. Where demand comes from: demand.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from deploy.autoscale import formulas
from deploy.autoscale.demand import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Bounds and tempo. `down_after_s`: low demand must last this long, and so long after a scale-up none goes;
    `down_interval_s` lies between two that go; `hysteresis`: share of the smaller fleet that must stay free.

    `ttft_goal`: share of answers that should begin within the target; while fewer do, nobody goes, and every
    `ttft_up_interval_s` another one comes, up to `ttft_headroom` replicas beyond the demand.
    """

    min_replicas: int
    max_replicas: int
    down_after_s: float = 180.0
    down_interval_s: float = 30.0
    hysteresis: float = 0.1
    ttft_goal: float = 0.95
    ttft_up_interval_s: float = 20.0
    ttft_headroom: int = 2

    def clamp(self, replicas: int) -> int:
        """Within the bounds."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas by state. Those that failed and will be restarted count as starting."""

    ready: int
    starting: int = 0
    draining: int = 0


@dataclass(slots=True)
class Autoscaler:
    """Owner of the wanted number of replicas of one model. `desired` is within the rules' bounds at any time."""

    rules: Rules
    desired: int
    _recent: deque[tuple[float, Demand]] = field(default_factory=deque)  # of the last down_after_s
    _settled_since_s: float | None = None  # when the first demand came, or the last scale-up
    _last_down_s: float = float("-inf")
    _last_ttft_up_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.desired = self.rules.clamp(self.desired)

    def tick(self, now_s: float, demand: Demand, fleet: Fleet) -> int:
        """The number of replicas wanted from now on, those that are starting included."""
        self._remember(now_s, demand)
        if self._settled_since_s is None:
            self._settled_since_s = now_s
        target = self.rules.clamp(max(formulas.wanted(demand.replicas), self._wanted_for_ttft(now_s, demand, fleet)))
        if target > self.desired:
            self.desired = target
            self._settled_since_s = now_s
        elif self._may_shrink(now_s, fleet):
            self.desired -= 1
            self._last_down_s = now_s
        return self.desired

    def _remember(self, now_s: float, demand: Demand) -> None:
        self._recent.append((now_s, demand))
        while self._recent[0][0] < now_s - self.rules.down_after_s:
            self._recent.popleft()

    def _wanted_for_ttft(self, now_s: float, demand: Demand, fleet: Fleet) -> int:
        """One more than now, if answers begin late although everybody who should be there is."""
        rules = self.rules
        late = demand.ttft_share is not None and demand.ttft_share < rules.ttft_goal
        all_there = not fleet.starting and fleet.ready >= self.desired
        if not late or not all_there or now_s - self._last_ttft_up_s < rules.ttft_up_interval_s:
            return 0
        if self.desired >= formulas.wanted(demand.replicas) + rules.ttft_headroom:
            return 0  # more replicas do not help against what makes them late
        self._last_ttft_up_s = now_s
        return self.desired + 1

    def _may_shrink(self, now_s: float, fleet: Fleet) -> bool:
        rules = self.rules
        if self.desired <= rules.min_replicas or fleet.starting or fleet.draining or fleet.ready < self.desired:
            return False
        assert self._settled_since_s is not None
        if now_s - self._settled_since_s < rules.down_after_s or now_s - self._last_down_s < rules.down_interval_s:
            return False
        return all(self._is_low(demand) for _, demand in self._recent)

    def _is_low(self, demand: Demand) -> bool:
        in_time = demand.ttft_share is None or demand.ttft_share >= self.rules.ttft_goal
        return (
            not demand.missing
            and in_time
            and formulas.fits_one_fewer(demand.replicas, self.desired, self.rules.hysteresis)
        )
