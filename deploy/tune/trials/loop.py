"""The loop of experiments: look, propose, try on a canary, keep or drop, log. Knows neither fleets nor clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.tune.trials.bounds import Change, Value, check
from deploy.tune.trials.comparison import Comparison, compare
from deploy.tune.trials.decision import Decision, Rules, decide
from deploy.tune.trials.journal import Entry, Journal
from deploy.tune.trials.laboratory import CanaryFailed, Laboratory, Situation, Window
from deploy.tune.trials.proposal import Proposal, Tried, propose

SETTLE_WINDOWS = 2  # at least, in which the canary fills up, and that do not count
MAX_SETTLE_WINDOWS = 6
SETTLED = 1.05  # times the running requests of the window before
MIN_BUSY = 0.5  # of the samples with requests waiting, else nothing can be learnt


@dataclass(slots=True)
class Result:
    """What a run of experiments did. `stopped`: why there were no more."""

    entries: list[Entry] = field(default_factory=list)
    stopped: str = ""

    @property
    def kept(self) -> Change:
        """All that was changed, the last value of each flag."""
        return {
            flag: value for entry in self.entries if entry.outcome == "kept" for flag, value in entry.change.items()
        }


class Experimenter:
    """Runs up to `limit` experiments on one model. `tell` hears a line for people at each turn."""

    def __init__(
        self,
        laboratory: Laboratory,
        journal: Journal,
        *,
        model: str,
        rules: Rules,
        limit: int,
        tell: Callable[[str], None],
    ) -> None:
        self._laboratory = laboratory
        self._journal = journal
        self._model = model
        self._rules = rules
        self._limit = limit
        self._tell = tell
        self._dropped: list[Tried] = []

    def run(self) -> Result:
        """Until the limit, or until there is nothing left to try. Raises LaboratoryLost, UserError; no canary is left
        whatever happens."""
        result = Result()
        while len(result.entries) < self._limit:
            situation = self._laboratory.look()
            if (lull := _lull(situation)) is not None:
                result.stopped = lull
                return result
            proposal = propose(situation, self._dropped)
            if proposal is None:
                result.stopped = "There is nothing left to try."
                return result
            entry = self._experiment(len(result.entries) + 1, proposal, situation)
            self._journal.write(entry)
            result.entries.append(entry)
            self._tell(f"experiment {entry.experiment}: {entry.outcome}, {entry.because}")
        result.stopped = f"No more than {self._limit} experiments were allowed."
        return result

    def _experiment(self, number: int, proposal: Proposal, situation: Situation) -> Entry:
        check(proposal.change, situation.settings)
        before = {flag: situation.settings.get(flag) for flag in proposal.change}
        moves = ", ".join(f"--{flag} {before[flag]} -> {value}" for flag, value in proposal.change.items())
        self._tell(f"experiment {number}: {moves}. {proposal.why}")
        decision, because, measured = self._try(proposal)
        if decision is Decision.DROP:
            self._dropped.append(Tried(proposal.change, measured is None or measured.high < 0))
        else:
            self._dropped = [tried for tried in self._dropped if tried.is_final]
        return Entry(
            experiment=number,
            model=self._model,
            change=proposal.change,
            before=before,
            rule=proposal.rule,
            why=proposal.why,
            outcome=decision.value,
            because=because,
            settings=_after(situation.settings, proposal.change, decision),
            measured=measured,
        )

    def _try(self, proposal: Proposal) -> tuple[Decision, str, Comparison | None]:
        """One canary, from its start to its end."""
        kept = False
        measured: Comparison | None = None
        try:
            self._laboratory.begin(proposal.change)
            decision, because, measured = self._measure(for_safety=proposal.is_for_safety)
            if decision is Decision.KEEP:
                self._laboratory.keep()
                kept = True
            return decision, because, measured
        except CanaryFailed as fault:
            return Decision.DROP, str(fault), measured
        finally:
            if not kept:
                self._laboratory.drop()

    def _measure(self, *, for_safety: bool) -> tuple[Decision, str, Comparison]:
        self._settle()
        windows: list[Window] = []
        while True:
            windows.append(self._laboratory.window())
            measured = compare(windows, self._rules.looks)
            decision, because = decide(measured, self._rules, for_safety=for_safety)
            if decision is not Decision.GO_ON:
                return decision, because, measured

    def _settle(self) -> None:
        """Until the canary's batch no longer grows."""
        before = 0.0
        for number in range(1, MAX_SETTLE_WINDOWS + 1):
            running = self._laboratory.window().canary.running
            if number >= SETTLE_WINDOWS and running <= before * SETTLED:
                return
            before = running


def _lull(situation: Situation) -> str | None:
    """Why no experiment would show anything now, or None."""
    samples = [sample for seen in situation.seen for sample in seen.samples]
    busy = sum(sample.queued > 0 for sample in samples) / max(len(samples), 1)
    if busy >= MIN_BUSY:
        return None
    return f"Requests waited in {busy:.0%} of the samples: the replicas have too little to do to tell settings apart."


def _after(settings: Change, change: Change, decision: Decision) -> dict[str, Value]:
    return {**settings, **change} if decision is Decision.KEEP else dict(settings)
