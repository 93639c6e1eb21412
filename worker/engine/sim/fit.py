"""Makes a profile of measured steps: `python -m worker.engine.sim.fit STEPS --out PROFILE`. Prints how well it fits.

The costs of step_time.py that come closest, in relative terms, none negative: least squares, in which errors beyond
LARGE_ERROR count in proportion only (Huber), because a busy host makes some steps far too long. Steps that the host
bounds say nothing about the device: the floor is the time, among those of steps without a graph, that leaves the least
error when steps near it are left out of the fit of the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from common.errors import UserError
from worker.engine.sim.measured import MeasuredDevice, MeasuredStep, read_measured
from worker.engine.sim.profile import SimProfile
from worker.engine.sim.step_time import TOKEN_KNOTS, StepCosts, StepShape, quantities, step_time_s

Floats = npt.NDArray[np.float64]

NEAR_FLOOR = 1.15  # steps without a graph that take less than this times the floor may be bound by the host
MAX_FLOOR_CANDIDATES = 40
LARGE_ERROR = 0.05
ROBUST_ROUNDS = 6  # of fitting with weights by the errors of the round before
SIGNIFICANT_DIGITS = 5


@dataclass(frozen=True, slots=True)
class _Sample:
    shape: StepShape
    time_s: float


@dataclass(frozen=True, slots=True)
class KindError:
    """How far predictions are from measurements of one kind of step: shares of the measured time."""

    kind: str
    num_steps: int
    median: float
    p90: float
    worst: float
    bias: float  # mean of predicted / measured, minus 1


def fit_profile(
    device: MeasuredDevice, steps: Sequence[MeasuredStep], answer_tokens: tuple[int, int] | None
) -> SimProfile:
    """The profile that comes closest. Raises UserError if the steps do not suffice."""
    return SimProfile(
        device=device.device,
        model=device.model,
        source=f"fitted to {len(steps)} steps measured by {device.source}",
        dtype=device.dtype,
        page_size=device.page_size,
        memory=device.memory,
        costs=fit_costs(steps),
        answer_tokens=answer_tokens,
    )


def fit_costs(steps: Sequence[MeasuredStep]) -> StepCosts:
    """Costs alone. Raises UserError if the steps do not suffice."""
    samples = [_Sample(step.shape, float(np.median(step.times_s))) for step in steps]
    single = [sample for sample in samples if sample.shape.single]
    several = [sample for sample in samples if not sample.shape.single]
    if not single or len(several) < len(TOKEN_KNOTS):
        raise UserError("There are too few steps to fit; measure single decodes, decode batches and prefill chunks.")
    single_costs = _relative_nnls([[1.0, float(s.shape.context_tokens)] for s in single], single)
    eager = np.unique([s.time_s for s in several if not s.shape.graph])
    candidates = eager[np.linspace(0, len(eager) // 2, MAX_FLOOR_CANDIDATES).astype(int)] if len(eager) else []
    floors_s = (0.0, *(floor_s for floor_s in candidates if _above_floor(several, floor_s)))
    fits = [_with_floor(several, single_costs, floor_s) for floor_s in floors_s]
    return min(fits, key=lambda costs: _absolute_error(several, costs))


def errors(steps: Sequence[MeasuredStep], costs: StepCosts) -> list[KindError]:
    """By kind of step."""
    found = []
    for kind in dict.fromkeys(step.kind for step in steps):
        ratios = np.array(
            [step_time_s(s.shape, costs) / float(np.median(s.times_s)) - 1 for s in steps if s.kind == kind]
        )
        off = np.abs(ratios)
        median, p90, worst = np.quantile(off, (0.5, 0.9, 1.0)).tolist()
        found.append(KindError(kind, len(off), median, p90, worst, bias=float(ratios.mean())))
    return found


def nnls(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 that minimises |matrix x - target|, by the active-set method of Lawson and Hanson (1974)."""
    scale: Floats = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    a = matrix / scale
    x: Floats = np.zeros(a.shape[1])
    used = np.zeros(len(x), np.bool_)
    for _ in range(10 * len(x)):
        gradient = np.where(used, -np.inf, a.T @ (target - a @ x))
        if gradient.max() <= 1e-10 * np.linalg.norm(target):
            break
        used[gradient.argmax()] = True
        while True:
            trial = np.zeros(len(x))
            trial[used] = np.linalg.lstsq(a[:, used], target, rcond=None)[0]
            below = used & (trial <= 0)
            if not below.any():
                break
            share = (x[below] / (x[below] - trial[below])).min()  # as far towards the trial as nothing turns negative
            x = np.where(used, x + share * (trial - x), 0.0)
            used &= x > 1e-15
        x = trial
    return x / scale


def _above_floor(samples: Sequence[_Sample], floor_s: float) -> list[_Sample]:
    """Those whose time a floor of passes without a graph says nothing about."""
    return [s for s in samples if s.shape.graph or s.time_s > floor_s * NEAR_FLOOR]


def _with_floor(samples: Sequence[_Sample], single: Floats, floor_s: float) -> StepCosts:
    free = _above_floor(samples, floor_s)
    factors = [_rounded(value) for value in _relative_nnls([quantities(s.shape) for s in free], free)]
    slopes_end = 2 + len(TOKEN_KNOTS)
    sequence, context, prefix, prefix_pair, chunk, chunk_pair, chunk_context = factors[slopes_end:]
    return StepCosts(
        every_step_s=factors[0],
        eager_s=factors[1],
        eager_floor_s=_rounded(floor_s),
        token_slopes_s=factors[2:slopes_end],
        sequence_s=sequence,
        context_token_s=context,
        prefix_s=prefix,
        prefix_pair_s=prefix_pair,
        chunk_s=chunk,
        chunk_pair_s=chunk_pair,
        chunk_context_token_s=chunk_context,
        single_s=_rounded(single[0]),
        single_context_token_s=_rounded(single[1]),
    )


def _relative_nnls(rows: Sequence[Sequence[float]], samples: Sequence[_Sample]) -> Floats:
    matrix = np.array(rows) / np.array([[s.time_s] for s in samples])
    weights = np.ones(len(samples))
    for _ in range(ROBUST_ROUNDS):
        factors = nnls(matrix * weights[:, None], weights)
        off = np.abs(matrix @ factors - 1)
        weights = np.sqrt(LARGE_ERROR / np.maximum(off, LARGE_ERROR))
    return factors


def _absolute_error(samples: Sequence[_Sample], costs: StepCosts) -> float:
    return float(sum(abs(step_time_s(s.shape, costs) / s.time_s - 1) for s in samples))


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path, help="what benchmarks.step_times wrote")
    parser.add_argument("--out", type=Path, required=True, help="profile to write (JSON)")
    parser.add_argument(
        "--answer-tokens", type=int, nargs=2, metavar=("LEAST", "MOST"), help="length of answers that end by themselves"
    )
    options = parser.parse_args(argv)
    answer_tokens = tuple(options.answer_tokens) if options.answer_tokens else None
    if answer_tokens is not None and not 1 <= answer_tokens[0] <= answer_tokens[1]:
        parser.error("--answer-tokens needs two numbers, at least 1, the smaller first")
    try:
        device, steps = read_measured(options.steps)
        profile = fit_profile(device, steps, answer_tokens)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot write {options.out}: {error.strerror}.", file=sys.stderr)
        return 2
    print(f"{'kind':20} {'steps':>5} {'median':>8} {'p90':>8} {'worst':>8} {'bias':>8}")
    for row in errors(steps, profile.costs):
        shares = " ".join(f"{share:>8.1%}" for share in (row.median, row.p90, row.worst, row.bias))
        print(f"{row.kind:20} {row.num_steps:>5} {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
