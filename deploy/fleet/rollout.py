"""How a model gets from the replicas it has to those it should have: one small step at a time, pure.

A step never takes a ready replica away while fewer than the wanted number are ready, so a rolling update keeps at
least `wanted - 1` of them. Where there is room it starts the new replica first, and keeps all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.fleet.state import Replica, State

UNPLACED_SURGE_S = 10.0  # a replica beyond the wanted number that finds no place so long makes an old one leave first

Victim = Callable[[Sequence[Replica]], Replica]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do now: begin `add` replicas of the target version, let `drain` leave."""

    add: int = 0
    drain: tuple[Replica, ...] = ()


NOTHING = Step()


def next_step(
    replicas: Sequence[Replica], wanted: int, target: str, victim: Victim, now_s: float, *, has_room: bool
) -> Step:
    """The step from `replicas`, all of one model, towards `wanted` of version `target`.

    `victim` chooses among ready ones. `has_room`: whether one more replica would find a place at once.
    """
    active = [r for r in replicas if r.state is not State.DRAINING]
    outdated = [r for r in active if r.life.version != target]
    if not outdated:
        return _scale(active, wanted, victim)
    if idle := [r for r in outdated if r.state is not State.READY]:
        return Step(drain=tuple(idle))  # they serve nobody
    if any(r.life.version != target for r in replicas if r.state is State.DRAINING):
        return NOTHING  # one at a time
    if len(active) < wanted:
        return _one_more(active, target)
    return _replace(active, outdated, wanted, victim, now_s, has_room=has_room)


def is_done(replicas: Sequence[Replica], wanted: int, target: str) -> bool:
    """Whether exactly the wanted replicas are there, ready and of the target version."""
    return len(replicas) == wanted and all(r.state is State.READY and r.life.version == target for r in replicas)


def _scale(active: list[Replica], wanted: int, victim: Victim) -> Step:
    surplus = len(active) - wanted
    if surplus <= 0:
        return Step(add=-surplus)
    idle = [r for r in active if r.state is not State.READY][:surplus]
    leaving = list(idle)
    staying = [r for r in active if r.state is State.READY]
    while len(leaving) < surplus:
        chosen = victim(staying)
        staying.remove(chosen)
        leaving.append(chosen)
    return Step(drain=tuple(leaving))


def _one_more(active: list[Replica], target: str) -> Step:
    """One at a time: an update that does not work must not cost more than one replica."""
    is_waiting = any(r.life.version == target and r.state is not State.READY for r in active)
    return NOTHING if is_waiting else Step(add=1)


def _replace(
    active: list[Replica], outdated: list[Replica], wanted: int, victim: Victim, now_s: float, *, has_room: bool
) -> Step:
    ready = sum(r.state is State.READY for r in active)
    unready = [r for r in active if r.state is not State.READY]
    if unready and not all(_finds_no_place(r, now_s) for r in unready):
        return NOTHING
    if len(active) == wanted and has_room and not unready:
        return Step(add=1)
    return Step(drain=(victim(outdated),)) if ready >= wanted else NOTHING


def _finds_no_place(replica: Replica, now_s: float) -> bool:
    is_starting = replica.state is State.STARTING and replica.placed_at_s is None
    return is_starting and now_s - replica.since_s >= UNPLACED_SURGE_S
