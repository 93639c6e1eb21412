"""How long a step takes: a sum of costs, each with a measurable quantity of the step. Linear, so that it can be fitted.

A step without a CUDA graph or with more than one sequence takes

    every_step + eager * (no graph)
    + sum over knots k of token_slopes[k] * max(0, T - k)     products; T = tokens computed, padding of graphs included
    + sequence * R                                            tables, head and sampling of R sequences
    + context_token * C                                       KV that decodes read, prefixes read once counted once
    + prefix * (any) + prefix_pair * sum(members * tokens)    prefixes that running requests share
    + chunk * (any) + chunk_pair * P + chunk_context_token * K   attention of prefill chunks: P pairs of query and key,
                                                              K tokens of context before the chunks

seconds, and without a graph at least `eager_floor`, which the host needs to launch its kernels. Slopes that only grow
are what products have: bound by reading weights with few tokens, by arithmetic with many. A single decode has kernels
of its own: single + single_context_token * C.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

TOKEN_KNOTS = (0, 64, 128, 256, 512, 2048)

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """The quantities of a step that its time depends on."""

    graph: bool
    num_decode: int
    decode_rows: int  # with a graph's padding
    context_tokens: int  # KV tokens that decodes read
    prefix_pairs: int  # sum over prefix groups of members * prefix tokens
    num_chunks: int
    chunk_tokens: int
    chunk_pairs: int  # (query, key) pairs of the chunks' causal attention
    chunk_context_tokens: int  # tokens before the chunks

    @property
    def single(self) -> bool:
        """One decode and nothing else."""
        return self.num_decode == 1 and not self.num_chunks


class StepCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The factors of the formula above, seconds each."""

    every_step_s: Seconds
    eager_s: Seconds
    eager_floor_s: Seconds
    token_slopes_s: Annotated[list[Seconds], msgspec.Meta(min_length=len(TOKEN_KNOTS), max_length=len(TOKEN_KNOTS))]
    sequence_s: Seconds
    context_token_s: Seconds
    prefix_s: Seconds
    prefix_pair_s: Seconds
    chunk_s: Seconds
    chunk_pair_s: Seconds
    chunk_context_token_s: Seconds
    single_s: Annotated[float, msgspec.Meta(gt=0)]
    single_context_token_s: Seconds

    def factors(self) -> list[float]:
        """Aligned with `quantities`."""
        return [
            self.every_step_s,
            self.eager_s,
            *self.token_slopes_s,
            self.sequence_s,
            self.context_token_s,
            self.prefix_s,
            self.prefix_pair_s,
            self.chunk_s,
            self.chunk_pair_s,
            self.chunk_context_token_s,
        ]


def quantities(shape: StepShape) -> list[float]:
    """What the costs of a step that is no single decode are multiplied with."""
    tokens = shape.decode_rows + shape.chunk_tokens
    return [
        1.0,
        float(not shape.graph),
        *(float(max(0, tokens - knot)) for knot in TOKEN_KNOTS),
        float(shape.num_decode + shape.num_chunks),
        float(shape.context_tokens),
        float(shape.prefix_pairs > 0),
        float(shape.prefix_pairs),
        float(shape.num_chunks > 0),
        float(shape.chunk_pairs),
        float(shape.chunk_context_tokens),
    ]


def step_time_s(shape: StepShape, costs: StepCosts) -> float:
    """Seconds on the device."""
    time_s = _device_s(shape, costs)
    return time_s if shape.graph else max(time_s, costs.eager_floor_s)


def decode_times_s(shape: StepShape, costs: StepCosts, steps: int) -> npt.NDArray[np.float64]:
    """[steps], of the steps after one of decodes alone, if all of these go on: each reads one token more a step."""
    token_s = costs.single_context_token_s if shape.single else costs.context_token_s
    times_s = _device_s(shape, costs) + shape.num_decode * token_s * np.arange(1, steps + 1, dtype=np.float64)
    return times_s if shape.graph else np.maximum(times_s, costs.eager_floor_s)


def _device_s(shape: StepShape, costs: StepCosts) -> float:
    if shape.single:
        return costs.single_s + costs.single_context_token_s * shape.context_tokens
    return sum(a * b for a, b in zip(quantities(shape), costs.factors(), strict=True))
