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
    """Bounds and tempo.

    Up: at once, by as many as are missing: when the demand averaged over `steady_s` asks for more, or the demand of the
    moment does with a share `burst_margin` to spare, because a moment is noisy. Down: one at a time, when the
    averaged demand has left a share `hysteresis` of the smaller fleet free for `down_after_s`; never sooner after a
    scale-up than that, nor sooner after another one left than `down_interval_s`.

    `ttft_goal`: share of answers that should begin within the target. While fewer do, nobody goes, and each
    `ttft_up_interval_s` another one comes, up to `ttft_headroom` replicas beyond the demand.
    """

    min_replicas: int
    max_replicas: int
    steady_s: float = 60.0
    burst_margin: float = 0.4
    down_after_s: float = 180.0
    down_interval_s: float = 30.0
    hysteresis: float = 0.05
    ttft_goal: float = 0.95
    ttft_up_interval_s: float = 60.0
    ttft_headroom: int = 1

    def clamp(self, replicas: int) -> int:
        """Within the bounds."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas by state. Those that failed and will be restarted count as starting."""

    ready: int
    starting: int = 0
    draining: int = 0


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    steady: float  # demand averaged over the steady_s before, in replicas
    calm: bool  # every report was there, and answers began in time


@dataclass(slots=True)
class ScalingPolicy:
    """Remembers the demand of one model, and when it scaled. It does not own the number of replicas: that comes in and
    goes out with every tick, always within the rules' bounds."""

    rules: Rules
    _demands: deque[tuple[float, float]] = field(default_factory=deque)  # of the last steady_s
    _moments: deque[_Moment] = field(default_factory=deque)  # of the last down_after_s
    _settled_since_s: float | None = None  # when the first demand came, or the last scale-up
    _last_down_s: float = float("-inf")
    _last_ttft_up_s: float = float("-inf")

    def tick(self, now_s: float, demand: Demand, fleet: Fleet, current: int) -> int:
        """How many replicas are wanted from now on, those that are starting included; until now it was `current`."""
        steady = self._remember(now_s, demand)
        if self._settled_since_s is None:
            self._settled_since_s = now_s
        current = self.rules.clamp(current)
        needed = formulas.wanted(max(steady, formulas.beyond_noise(demand.replicas, self.rules.burst_margin)))
        target = self.rules.clamp(max(needed, self._wanted_for_ttft(now_s, demand, fleet, current)))
        if target > current:
            self._settled_since_s = now_s
            return target
        if self._may_shrink(now_s, fleet, current):
            self._last_down_s = now_s
            return current - 1
        return current

    def _remember(self, now_s: float, demand: Demand) -> float:
        """Returns the averaged demand."""
        demands, moments = self._demands, self._moments
        demands.append((now_s, demand.replicas))
        while demands[0][0] < now_s - self.rules.steady_s:
            demands.popleft()
        calm = not demand.missing and not self._is_late(demand)
        steady = sum(replicas for _, replicas in demands) / len(demands)
        moments.append(_Moment(now_s, steady, calm))
        while moments[0].at_s < now_s - self.rules.down_after_s:
            moments.popleft()
        return steady

    def _is_late(self, demand: Demand) -> bool:
        return demand.ttft_share is not None and demand.ttft_share < self.rules.ttft_goal

    def _wanted_for_ttft(self, now_s: float, demand: Demand, fleet: Fleet, current: int) -> int:
        """One more than now, if answers begin late although everybody who should be there is."""
        rules = self.rules
        all_there = not fleet.starting and fleet.ready >= current
        if not self._is_late(demand) or not all_there or now_s - self._last_ttft_up_s < rules.ttft_up_interval_s:
            return 0
        if current >= formulas.wanted(demand.replicas) + rules.ttft_headroom:
            return 0  # more replicas do not help against what makes them late
        self._last_ttft_up_s = now_s
        return current + 1

    def _may_shrink(self, now_s: float, fleet: Fleet, current: int) -> bool:
        rules = self.rules
        if current <= rules.min_replicas or fleet.starting or fleet.draining or fleet.ready < current:
            return False
        assert self._settled_since_s is not None
        if now_s - self._settled_since_s < rules.down_after_s or now_s - self._last_down_s < rules.down_interval_s:
            return False
        fits = formulas.fits_one_fewer
        return all(moment.calm and fits(moment.steady, current, rules.hysteresis) for moment in self._moments)
