"""How long outputs get, learned from those that ended: the chance that a request with so many outputs gets more.

For classes of requests that allow about the same number of outputs, and for bins of lengths, it counts how often
outputs ended in a bin and how many tokens were produced in it. Their quotient is the chance to end with the next token
(the Kaplan-Meier estimate in bins). Requests still running count as produced tokens, so long outputs are heard of
before they end; outputs that end at their limit, or ignore EOS, say nothing about ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.scheduler.rows import Int64s

Floats = npt.NDArray[np.float64]

NUM_CLASSES = 10
_SMALLEST_CLASS_BITS = 6  # up to 63 outputs allowed; each further class allows twice as many
_BIN_GROWTH = 1.25  # of lengths
_MEMORY_ENDS = 400.0  # ends after which the weight of an older one is 1 / e
# Ends in a bin that the belief before any observation counts for: of a class all by itself, and of all classes.
_OWN_WEIGHT, _POOLED_WEIGHT = 0.5, 0.25
_MEAN_WEIGHT = 4.0  # ends that the belief about the mean counts for
_REFRESH_ENDS = 8
_FEW_ENDS = 64  # up to here every refresh is due
_LEAST_SURVIVAL = 1e-9


class OutputLengths:
    """`max_tokens`: lengths from there on are one. Survival tables change every few ends only, by `refresh`."""

    def __init__(self, max_tokens: int) -> None:
        self._longest = max_tokens
        edges = [0, 1]
        while edges[-1] < max_tokens:
            edges.append(max(edges[-1] + 1, int(edges[-1] * _BIN_GROWTH)))
        self._edges = np.array(edges, np.int64)  # bin b: lengths edges[b] to edges[b + 1] - 1
        self._widths = np.diff(self._edges)
        self._bins = np.searchsorted(self._edges, np.arange(edges[-1]), side="right") - 1  # by length
        self._ends = np.zeros((NUM_CLASSES, len(self._widths)))
        self._produced = np.zeros((NUM_CLASSES, len(self._widths)))
        self._halves = 2.0 ** (_SMALLEST_CLASS_BITS - 1 + np.arange(NUM_CLASSES))  # of about what a class allows
        self._new_ends = 0
        self.num_ends = 0.0  # weights of the ends that are remembered
        self._survival = np.ones((NUM_CLASSES, self._edges[-1] + 1))
        # Of each class no request produces more; beyond that its row of the table means nothing.
        self._last = np.minimum(2 ** (_SMALLEST_CLASS_BITS + np.arange(NUM_CLASSES)), self._edges[-1])
        self._last[-1] = self._edges[-1]
        self._logs = np.zeros((NUM_CLASSES, len(self._widths)))  # of the chance to go on, by bin
        self._stale = np.ones(NUM_CLASSES, np.bool_)

    def refresh(self, classes: Int64s, num_outputs: Int64s) -> None:
        """Learn from ends since the last refresh, and from what runs: class and outputs of each."""
        if self._new_ends < _REFRESH_ENDS and self.num_ends > _FEW_ENDS:
            return
        self._new_ends = 0
        produced = self._produced.copy()
        np.add.at(produced, classes, self._spent(num_outputs[:, None]))
        believed = self._believed(produced)
        pooled = (self._ends.sum(0) + _POOLED_WEIGHT) / (produced.sum(0) + _POOLED_WEIGHT / believed)
        chance = (self._ends + _OWN_WEIGHT) / (produced + _OWN_WEIGHT / pooled)
        self._logs = np.log1p(-np.minimum(chance, 0.999))
        self._stale[:] = True

    def survival(self, classes: Int64s, num_outputs: Int64s, more: Int64s) -> Floats:
        """[R, K], the chance that each of R requests produces more than `more` [K] tokens beside its outputs [R]."""
        if self._stale[classes].any():
            for index in np.unique(classes[self._stale[classes]]).tolist():
                self._fill(index)
        last = self._last[classes]
        now = np.minimum(num_outputs, last)
        later = np.minimum(now[:, None] + more, last[:, None])
        chances: Floats = self._survival[classes[:, None], later] / self._survival[classes, now][:, None]
        return chances

    def survival_of_one(self, max_new_tokens: int, num_outputs: int, more: Int64s) -> Floats:
        """[K], as `survival` for one request."""
        index = _class_of_one(max_new_tokens)
        if self._stale[index]:
            self._fill(index)
        last = int(self._last[index])
        now, row = min(num_outputs, last), self._survival[index]
        chances: Floats = row[np.minimum(more + now, last)] / row[now]
        return chances

    def on_end(self, max_new_tokens: int, num_outputs: int) -> None:
        """An output of a request that heeds EOS is complete."""
        index = _class_of_one(max_new_tokens)
        keep = 1.0 - 1.0 / _MEMORY_ENDS
        self._ends[index] *= keep
        self._produced[index] *= keep
        self._produced[index] += self._spent(np.int64(num_outputs))
        if 0 < num_outputs < max_new_tokens:
            self._ends[index, self._bins[min(num_outputs, len(self._bins)) - 1]] += 1
        self._new_ends += 1
        self.num_ends = self.num_ends * keep + 1.0

    def _fill(self, index: int) -> None:
        """Bring the table of a class up to date."""
        last = int(self._last[index])
        row = self._survival[index, 1 : last + 1]
        np.cumsum(self._logs[index, self._bins[:last]], out=row)
        np.exp(row, out=row)
        np.maximum(row, _LEAST_SURVIVAL, out=row)
        self._stale[index] = False

    def _believed(self, produced: Floats) -> Floats:
        """The chance to end where nothing was seen: the longer an output is, the longer it goes on, from the mean of
        its class at the start. Before there is a mean it is half of what the class allows."""
        mean = (_MEAN_WEIGHT * self._halves + produced.sum(1)) / (_MEAN_WEIGHT + self._ends.sum(1))
        chance: Floats = 1.0 / (self._edges[:-1] + mean[:, None])
        return chance

    def _spent(self, num_outputs: Int64s | np.int64) -> Int64s:
        """Tokens that outputs of these lengths have in each bin."""
        spent: Int64s = np.clip(num_outputs - self._edges[:-1], 0, self._widths)
        return spent


def _class_of_one(max_new_tokens: int) -> int:
    return min(max(max_new_tokens.bit_length() - _SMALLEST_CLASS_BITS, 0), NUM_CLASSES - 1)


def class_of(max_new_tokens: Int64s) -> Int64s:
    """The class of requests that allow so many outputs."""
    bits = np.frexp(max_new_tokens.astype(np.float64))[1].astype(np.int64)
    classes: Int64s = np.clip(bits - _SMALLEST_CLASS_BITS, 0, NUM_CLASSES - 1)
    return classes
