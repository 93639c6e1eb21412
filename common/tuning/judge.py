"""All rules over one replica, and what is left when they contradict each other."""

from __future__ import annotations

from dataclasses import replace

from common.tuning.finding import MIN_SAMPLES, Finding, Verdict
from common.tuning.machine_rules import MACHINE_RULES
from common.tuning.observation import Observation
from common.tuning.rules import LOAD_RULES, RETRACTIONS_PER_MINUTE

_CONSERVATIVENESS = (5, 6)
_MEMORY_ORDER = (13, 11, 12, 10, 14, 9)  # who decides about --mem-fraction-static, first to last


def judge(seen: Observation) -> list[Finding]:
    """Findings in the order of their numbers, conflicts resolved."""
    found = [finding for rule in (*LOAD_RULES, *MACHINE_RULES) if (finding := rule(seen)) is not None]
    if len(seen.samples) < MIN_SAMPLES:
        text = f"{len(seen.samples)} samples of the scheduler's state"
        found.append(Finding(0, Verdict.UNKNOWN, text, f"At least {MIN_SAMPLES} are needed to judge the load."))
    return sorted(_one_fraction(_one_conservativeness(found, seen), seen), key=lambda finding: finding.rule)


def _one_conservativeness(found: list[Finding], seen: Observation) -> list[Finding]:
    """Lower is not advised while requests are retracted often: what the guide's two rules say excludes each other."""
    rate = seen.retractions_per_minute
    if rate is None or rate <= RETRACTIONS_PER_MINUTE:
        return found
    return [_muted(finding, "requests are retracted often") if _lowers(finding) else finding for finding in found]


def _lowers(finding: Finding) -> bool:
    return finding.rule == _CONSERVATIVENESS[0] and "schedule-conservativeness" in finding.flags


def _one_fraction(found: list[Finding], seen: Observation) -> list[Finding]:
    """--mem-fraction-static moves in one direction, and never up after memory ran out."""
    owners = [rule for rule in _MEMORY_ORDER if any(f.rule == rule and "mem-fraction-static" in f.flags for f in found)]
    kept = []
    for finding in found:
        if finding.rule == 9 and seen.out_of_memory and finding.verdict is Verdict.CHANGE:
            kept.append(_muted(finding, "memory ran out under load"))
        elif "mem-fraction-static" in finding.flags and finding.rule != owners[0]:
            kept.append(_without_fraction(finding))
        else:
            kept.append(finding)
    return kept


def _muted(finding: Finding, reason: str) -> Finding:
    return replace(finding, verdict=Verdict.NOTE, means=f"{finding.means} Not now: {reason}.", flags={})


def _without_fraction(finding: Finding) -> Finding:
    flags = {name: value for name, value in finding.flags.items() if name != "mem-fraction-static"}
    if flags:
        return replace(finding, flags=flags)
    return _muted(finding, "another finding decides about --mem-fraction-static")
