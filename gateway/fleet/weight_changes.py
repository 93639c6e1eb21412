"""When workers' weights change: a stream that began before, or meanwhile, must not go on at another worker. Afterwards
WorkerView.weights tells those that have the new ones from those that do not."""

from __future__ import annotations


class WeightChanges:
    """Counts the updates that go through this gateway. Workers of one model take their new weights at different
    moments, so while one update runs no two of them need have the same."""

    def __init__(self) -> None:
        self._begun = 0
        self._running = 0

    def begin(self) -> None:
        """Workers are told to change theirs."""
        self._begun += 1
        self._running += 1

    def end(self) -> None:
        """All have answered."""
        self._running = max(self._running - 1, 0)  # a process that has just started has not heard of the beginning

    def mark(self) -> int | None:
        """For `same_since`; None while an update runs."""
        return None if self._running else self._begun

    def same_since(self, mark: int | None) -> bool:
        """Whether no worker's weights have changed since, but for those of processes that started anew."""
        return mark == self._begun
