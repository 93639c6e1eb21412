"""What to try next: first what the tuning guide's rules advise, sized by what was seen; then neighbours. Pure.

The guide moves in small steps because each costs a person a restart. A canary measures each step, so steps here are
as large as the figures suggest, and a step that was dropped is halved once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from common.tuning.finding import Finding, Verdict
from common.tuning.judge import judge
from common.tuning.observation import Observation
from deploy.tune.trials.bounds import BOUNDS, LARGEST_FACTOR, Change, Value, nearest
from deploy.tune.trials.laboratory import Situation

ORDER = (13, 11, 12, 10, 6, 14, 19, 5, 9)  # rules with flags to change, the most urgent first
SAFETY = (10, 11, 12, 13)
LEAST_FRACTION = 0.01  # of GPU memory, worth an experiment
ALL_ROWS = 0.95  # of the requests that may run
KV_BOUND = 0.85  # token usage from which a larger pool may help
AIM_FREE_GB = 5.5  # of GPU memory after the start: the healthy band is 5 to 8, and the rest goes to the pool
LARGEST_GRAPHS = 512  # requests
MORE_THAN_RUNNING = 1.25  # times the running requests, for graphs
NEIGHBOURS: tuple[tuple[str, Callable[[float], float]], ...] = (  # tried when no rule has advice, in this order
    ("chunked-prefill-size", lambda value: value * 4),
    ("schedule-conservativeness", lambda value: value * 0.3),
    ("max-running-requests", lambda value: value * 2),
    ("chunked-prefill-size", lambda value: value / 4),
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change to try. `rule`: its number in docs/tuning.md, 0 for a neighbour that no rule advises."""

    change: Change
    rule: int
    why: str

    @property
    def is_for_safety(self) -> bool:
        """Whether it is there to keep memory from running out, not for more tokens a second."""
        return self.rule in SAFETY


@dataclass(frozen=True, slots=True)
class Tried:
    """A change that was dropped. `is_final`: it did harm or could not start, else it made no difference to the fleet as
    it was, which may be otherwise once another change is kept."""

    change: Change
    is_final: bool


def propose(situation: Situation, dropped: Sequence[Tried]) -> Proposal | None:
    """The most promising change that was not dropped before; None if there is none left."""
    for proposal in (*_by_rules(situation), *_neighbours(situation)):
        for candidate in _unless_dropped(proposal, situation, dropped):
            return candidate
    return None


def _by_rules(situation: Situation) -> Iterator[Proposal]:
    """What the rules advise, of all replicas together the most confident word of each rule."""
    advice: dict[int, tuple[Finding, Observation]] = {}
    for seen in situation.seen:
        for finding in judge(seen):
            if finding.rule == 9 and not _is_kv_bound(seen):
                continue
            is_advice = finding.verdict is Verdict.CHANGE and finding.flags
            if is_advice and finding.confidence > advice.get(finding.rule, (_NONE, seen))[0].confidence:
                advice[finding.rule] = finding, seen
    for rule in ORDER:
        if rule in advice:
            finding, seen = advice[rule]
            change = _sized(finding, seen, situation)
            if change:
                yield Proposal(change, rule, f"{finding.saw}. {finding.means}")


_NONE = Finding(0, Verdict.NOTE, "", confidence=-1.0)


def _sized(finding: Finding, seen: Observation, situation: Situation) -> Change:
    """The finding's flags, with values that go all the way where the figures say how far that is."""
    change: dict[str, Value] = {}
    for flag, advised in finding.flags.items():
        wanted = _aim(flag, advised, finding.rule, seen, situation)
        allowed = nearest(flag, wanted, situation.settings.get(flag))
        if allowed is not None and allowed != situation.settings.get(flag):
            change[flag] = allowed
    return _with_graphs(change, situation)


def _aim(flag: str, advised: str, rule: int, seen: Observation, situation: Situation) -> Value:
    now = situation.settings.get(flag)
    if flag == "max-running-requests" and rule == 5 and isinstance(now, int):
        return now * LARGEST_FACTOR  # too many do no harm: the pool bounds them too
    if flag == "mem-fraction-static" and rule in (9, 10) and isinstance(now, int | float):
        return now + _spare_share(seen, situation)
    if flag == "cuda-graph-max-bs":
        return max(LARGEST_GRAPHS, seen.running * MORE_THAN_RUNNING)
    try:
        return float(advised)
    except ValueError:
        return advised


def _spare_share(seen: Observation, situation: Situation) -> float:
    """Of GPU memory, beyond what should stay free; negative where too little is."""
    if seen.startup is None or situation.memory_gb is None:
        return 0.0
    return (seen.startup.available_gb - AIM_FREE_GB) / situation.memory_gb


def _is_row_bound(seen: Observation) -> bool:
    """Whether as many requests run as may."""
    return seen.row_cap is not None and seen.running >= ALL_ROWS * seen.row_cap


def _is_kv_bound(seen: Observation) -> bool:
    """Whether a larger pool may help: it is full, or nothing else keeps waiting requests out (with a small pool what is
    reserved for answers leaves much of it unused)."""
    return seen.usage >= KV_BOUND or (seen.queued > 0 and not _is_row_bound(seen))


def _with_graphs(change: dict[str, Value], situation: Situation) -> Change:
    """More running requests than the largest graph would only trade one limit for another."""
    rows, graphs = change.get("max-running-requests"), situation.settings.get("cuda-graph-max-bs")
    if isinstance(rows, int) and isinstance(graphs, int) and rows > graphs and graphs < LARGEST_GRAPHS:
        change["cuda-graph-max-bs"] = LARGEST_GRAPHS
    return change


def _neighbours(situation: Situation) -> Iterator[Proposal]:
    """Steps that no rule advises, where they make sense. First memory that the pool may use, down to the low end of the
    guide's healthy band."""
    for seen in situation.seen:
        fraction = situation.settings.get("mem-fraction-static")
        spare, now = _spare_share(seen, situation), fraction if isinstance(fraction, float) else None
        if now is not None and _is_kv_bound(seen) and spare >= LEAST_FRACTION:
            value = nearest("mem-fraction-static", now + spare, now)
            if value is not None and value != now:
                yield Proposal({"mem-fraction-static": value}, 0, "more memory is free than needed")
                break
    for flag, step in NEIGHBOURS:
        present = situation.settings.get(flag)
        if isinstance(present, int | float) and _may_help(flag, situation):
            value = nearest(flag, step(present), present)
            if value is not None and value != present:
                change = _with_graphs({flag: value}, situation)
                yield Proposal(change, 0, f"no rule has advice; a neighbour of --{flag} {present}")


def _may_help(flag: str, situation: Situation) -> bool:
    """More room in the batch helps where room is what is missing."""
    if flag == "max-running-requests":
        return any(map(_is_row_bound, situation.seen))
    return bool(situation.seen) and fmean(seen.queued for seen in situation.seen) > 0


def _unless_dropped(proposal: Proposal, situation: Situation, dropped: Sequence[Tried]) -> Iterable[Proposal]:
    """The proposal; the middle between now and it if it, or less of the same, was dropped; nothing if that was too."""
    blocking = [tried for tried in dropped if _goes_as_far(proposal.change, tried, situation)]
    if not blocking:
        return [proposal]
    middle = _middle(proposal, blocking[0], situation)
    if middle is None or any(_goes_as_far(middle.change, tried, situation) for tried in dropped):
        return []
    return [middle]


def _goes_as_far(change: Change, tried: Tried, situation: Situation) -> bool:
    """Whether `change` is about the same flag first, and sets it at least as far in the same direction."""
    flag = next(iter(change))
    if flag != next(iter(tried.change)):
        return False
    return _as_far(change[flag], tried.change[flag], situation.settings.get(flag))


def _as_far(value: Value, dropped: Value, now: Value | None) -> bool:
    if isinstance(value, str) or isinstance(dropped, str) or not isinstance(now, int | float):
        return value == dropped
    return value >= dropped > now if value > now else value <= dropped < now


def _middle(proposal: Proposal, tried: Tried, situation: Situation) -> Proposal | None:
    """Half the way of the first flag, by ratio; what goes with it as it is."""
    flag = next(iter(proposal.change))
    now, far = situation.settings.get(flag), tried.change.get(flag)
    if flag not in BOUNDS or not isinstance(now, int | float) or not isinstance(far, int | float) or now <= 0:
        return None
    value = nearest(flag, math.sqrt(now * far), now)
    if value is None or value in (now, far):
        return None
    return Proposal({**proposal.change, flag: value}, proposal.rule, f"{proposal.why} Half of a step that was dropped.")
