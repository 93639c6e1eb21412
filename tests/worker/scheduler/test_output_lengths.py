"""What is learned of output lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.scheduler.output_lengths import NUM_CLASSES, OutputLengths, class_of
from worker.scheduler.rows import Int64s

NOBODY: Int64s = np.empty(0, np.int64)


def survival(lengths: OutputLengths, limit: int, outputs: int, *more: int) -> list[float]:
    lengths.refresh(NOBODY, NOBODY)
    classes = class_of(np.array([limit]))
    chances: list[float] = lengths.survival(classes, np.array([outputs]), np.array(more))[0].tolist()
    return chances


def test_before_any_end_about_half_of_the_limit_is_expected() -> None:
    for limit in (200, 1000, 4000):
        chances = survival(OutputLengths(8192), limit, 0, *range(limit))
        assert 0.4 * limit < sum(chances) < 0.8 * limit


@pytest.mark.parametrize("limit", [500, 4096])
def test_learns_the_distribution_of_ends(limit: int) -> None:
    lengths, random = OutputLengths(8192), np.random.default_rng(0)
    for ended in random.integers(100, 300, 1000).tolist():
        lengths.on_end(limit, ended)
    assert survival(lengths, limit, 0, 50, 200, 310) == pytest.approx([1.0, 0.5, 0.0], abs=0.08)
    assert survival(lengths, limit, 200, 50) == pytest.approx([0.5], abs=0.12)
    assert sum(survival(lengths, limit, 0, *range(400))) == pytest.approx(200, rel=0.05)


def test_what_still_runs_counts() -> None:
    """100 short answers ended; 100 long ones are under way, of which none has."""
    lengths = OutputLengths(8192)
    for _ in range(100):
        lengths.on_end(1000, 50)
    alone = survival(lengths, 1000, 0, 100)[0]
    lengths.on_end(1000, 50)
    classes = class_of(np.full(100, 1000))
    for _ in range(8):
        lengths.on_end(1000, 50)
    lengths.refresh(classes, np.full(100, 400))
    beside = lengths.survival(class_of(np.array([1000])), np.array([0]), np.array([100]))[0, 0]
    assert alone < 0.25
    assert beside > alone + 0.3


def test_forgets() -> None:
    lengths = OutputLengths(8192)
    for ended in [50] * 1000 + [500] * 2500:
        lengths.on_end(1000, ended)
    assert survival(lengths, 1000, 0, 300)[0] > 0.9


def test_outputs_at_their_limit_say_nothing_about_ends() -> None:
    lengths = OutputLengths(8192)
    for _ in range(500):
        lengths.on_end(100, 100)
    assert survival(lengths, 100, 0, 99)[0] > 0.9


def test_classes_learn_apart_and_strangers_from_all() -> None:
    lengths = OutputLengths(8192)
    for _ in range(300):
        lengths.on_end(100, 20)
        lengths.on_end(4000, 700)
    assert survival(lengths, 100, 0, 30)[0] < 0.1
    assert survival(lengths, 4000, 0, 500)[0] > 0.85


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 20_000)), max_size=60),
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 20_000)), min_size=1, max_size=10),
)
def test_survival_is_a_falling_probability(ended: list[tuple[int, int]], runs: list[tuple[int, int]]) -> None:
    lengths = OutputLengths(16_384)
    for limit, ending in ended:
        lengths.on_end(limit, min(limit, ending))
    limits, outputs = (np.array(column, np.int64) for column in zip(*runs, strict=True))
    classes = class_of(limits)
    assert ((classes >= 0) & (classes < NUM_CLASSES)).all()
    lengths.refresh(classes, outputs)
    chances = lengths.survival(classes, outputs, np.array([0, 1, 10, 100, 4096]))
    assert np.allclose(chances[:, 0], 1.0)
    assert (chances > 0).all() and (np.diff(chances, axis=1) <= 1e-12).all()
