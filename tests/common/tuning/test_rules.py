"""Each rule: a window that provokes it, and one that must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.tuning.finding import Finding, Verdict, rate_confidence, share_confidence
from common.tuning.judge import judge
from common.tuning.observation import Facts, Observation, Phase, Sample, Symptom
from worker.log_lines import StartupLine


def window(*samples: tuple[int, int, float], graph: bool | None = None, **rest: object) -> Observation:
    """Each (running, queued, usage) ten times."""
    seen = [Sample(*sample, cuda_graph=graph) for sample in samples for _ in range(10)]
    return replace(Observation("r", minutes=5.0, samples=seen), **rest)  # type: ignore[arg-type]


def startup(free_gb: float, device: str = "gpu", rows: int = 1000, chunk: int | None = 8192) -> StartupLine:
    return StartupLine(10**6, chunk, 16384, rows, 8192, device, free_gb)


BUSY = (200, 300, 0.95)
HELD = (200, 300, 0.5)
MOE = Facts(architectures=["DeepseekV3ForCausalLM"], tp_size=8)

CASES: list[tuple[int, Verdict, Observation, Observation]] = [
    (1, Verdict.CHANGE, window((20, 0, 0.3)), window(BUSY)),
    (2, Verdict.HEALTHY, window(BUSY), window((20, 0, 0.3))),
    (2, Verdict.NOTE, window((20, 5, 0.95)), window(BUSY)),
    (3, Verdict.CHANGE, window((200, 2500, 0.95)), window(BUSY)),
    (4, Verdict.HEALTHY, window(BUSY), window(HELD)),
    (5, Verdict.CHANGE, window(HELD), window(BUSY)),
    (5, Verdict.CHANGE, window(HELD), window((20, 0, 0.5))),
    (5, Verdict.NOTE, window(HELD, facts=Facts(schedule_conservativeness=0.3)), window(HELD)),
    (5, Verdict.NOTE, window(HELD, facts=Facts(conservativeness_auto=True)), window(HELD)),
    (6, Verdict.CHANGE, window(BUSY, retractions=20), window(BUSY, retractions=4)),
    (6, Verdict.NOTE, window(BUSY, retractions=20, facts=Facts(conservativeness_auto=True)), window(BUSY)),
    (6, Verdict.CHANGE, window(BUSY, retractions=20), window(HELD, retractions=20)),
    (6, Verdict.NOTE, window(BUSY, retractions=20, facts=Facts(schedule_conservativeness=1.3)), window(BUSY)),
    (7, Verdict.HEALTHY, window(BUSY, retractions=4), window(BUSY, retractions=20)),
    (8, Verdict.HEALTHY, window(BUSY, startup=startup(6)), window(BUSY, startup=startup(15))),
    (9, Verdict.CHANGE, window(BUSY, startup=startup(15)), window(BUSY, startup=startup(6))),
    (9, Verdict.NOTE, window(BUSY, startup=startup(9)), window(BUSY, startup=startup(15, "cpu"))),
    (10, Verdict.CHANGE, window(BUSY, startup=startup(2)), window(BUSY, startup=startup(2, "cpu"))),
    (11, Verdict.CHANGE, window(BUSY, out_of_memory=[Phase.PREFILL]), window(BUSY, out_of_memory=[Phase.DECODE])),
    (12, Verdict.CHANGE, window(BUSY, startup=startup(6), out_of_memory=[Phase.DECODE]), window(BUSY)),
    (
        13,
        Verdict.CHANGE,
        window(BUSY, startup=startup(6, chunk=2048), out_of_memory=[Phase.PREFILL]),
        window(BUSY, startup=startup(6, chunk=4096), out_of_memory=[Phase.PREFILL]),
    ),
    (
        14,
        Verdict.CHANGE,
        window((300, 300, 0.95), graph=False, facts=Facts(cuda_graph_max_bs=256)),
        window((300, 300, 0.95), graph=True, facts=Facts(cuda_graph_max_bs=256)),
    ),
    (
        14,  # a few small batches went without, too: their step had prompts
        Verdict.CHANGE,
        window((300, 300, 0.95), (300, 300, 0.95), (20, 300, 0.95), graph=False, facts=Facts(cuda_graph_max_bs=256)),
        window((300, 300, 0.95), (20, 300, 0.95), (20, 300, 0.95), graph=False, facts=Facts(cuda_graph_max_bs=256)),
    ),
    (14, Verdict.NOTE, window((900, 9, 0.95), graph=False, facts=Facts(cuda_graph_max_bs=768)), window(BUSY)),
    (14, Verdict.UNKNOWN, window((300, 300, 0.95), graph=False), window((300, 300, 0.95))),
    (14, Verdict.NOTE, window((30, 9, 0.95), graph=False, facts=Facts(cuda_graph_max_bs=256)), window(BUSY)),
    (
        15,
        Verdict.CHANGE,
        window(BUSY, facts=Facts(tp_size=4, weights_gb=4, gpu_gb=141)),
        window(BUSY, facts=Facts(tp_size=4, weights_gb=35, gpu_gb=141)),
    ),
    (
        16,
        Verdict.CHANGE,
        window((2, 0, 0.1), facts=Facts(weights_gb=2, torch_compile=False)),
        window((2, 0, 0.1), facts=Facts(weights_gb=2, torch_compile=False, is_canopy=True)),
    ),
    (
        17,
        Verdict.CHANGE,
        window(BUSY, facts=Facts(weights_gb=60, gpu_gb=80)),
        window(BUSY, facts=Facts(weights_gb=16, gpu_gb=80)),
    ),
    (17, Verdict.NOTE, window(BUSY, facts=Facts(weights_gb=60, gpu_gb=80, is_canopy=True)), window(BUSY)),
    (18, Verdict.CHANGE, window(BUSY, facts=MOE), window(BUSY, facts=replace(MOE, architectures=["LlamaForCausalLM"]))),
    (
        19,
        Verdict.CHANGE,
        window(BUSY, new_tokens=50, cached_tokens=50, facts=Facts(schedule_policy="fcfs")),
        window(BUSY, new_tokens=90, cached_tokens=10, facts=Facts(schedule_policy="fcfs")),
    ),
    (
        19,
        Verdict.HEALTHY,
        window(BUSY, new_tokens=50, cached_tokens=50, facts=Facts(schedule_policy="lpm")),
        window((9, 0, 0.5), new_tokens=50, cached_tokens=50, facts=Facts(schedule_policy="lpm")),
    ),
    (20, Verdict.CHANGE, window(BUSY, symptoms=frozenset({Symptom.PEER_ACCESS})), window(BUSY)),
    (21, Verdict.CHANGE, window(BUSY, symptoms=frozenset({Symptom.HANG}), facts=Facts(nnodes=2)), window(BUSY)),
    (21, Verdict.NOTE, window(BUSY, symptoms=frozenset({Symptom.HANG})), window(BUSY)),
    (22, Verdict.CHANGE, window(BUSY, symptoms=frozenset({Symptom.SHARED_MEMORY})), window(BUSY)),
]


def verdicts(findings: Sequence[Finding]) -> set[tuple[int, Verdict]]:
    return {(finding.rule, finding.verdict) for finding in findings}


@pytest.mark.parametrize(("rule", "verdict", "provoked", "not_provoked"), CASES)
def test_a_rule_speaks_when_it_should_and_only_then(
    rule: int, verdict: Verdict, provoked: Observation, not_provoked: Observation
) -> None:
    assert (rule, verdict) in verdicts(judge(provoked))
    assert (rule, verdict) not in verdicts(judge(not_provoked))


def test_every_rule_of_the_table_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == set(range(1, 23))


def flags(seen: Observation) -> dict[str, str]:
    return {name: value for finding in judge(seen) for name, value in finding.flags.items()}


def test_values_to_change_to() -> None:
    facts = Facts(mem_fraction_static=0.88, cuda_graph_max_bs=256)
    assert flags(window(BUSY, startup=startup(15), facts=facts)) == {"mem-fraction-static": "0.89"}
    assert flags(window(BUSY, startup=startup(2), facts=facts)) == {"mem-fraction-static": "0.87"}
    assert flags(window((300, 300, 0.95), graph=False, facts=facts, startup=startup(6))) == {
        "cuda-graph-max-bs": "512",
        "mem-fraction-static": "0.86",
    }
    assert flags(window((300, 300, 0.95), graph=False, facts=facts, startup=startup(9))) == {"cuda-graph-max-bs": "512"}
    small = replace(facts, chunked_prefill_size=2048)
    assert flags(window(BUSY, out_of_memory=[Phase.PREFILL], facts=small)) == {"mem-fraction-static": "0.8"}
    smaller = replace(small, mem_fraction_static=0.8)
    assert flags(window(BUSY, out_of_memory=[Phase.PREFILL], facts=smaller)) == {"mem-fraction-static": "0.7"}
    assert flags(window(BUSY, out_of_memory=[Phase.DECODE], startup=startup(6))) == {"max-running-requests": "750"}
    assert flags(window((990, 300, 0.5), startup=startup(6))) == {"max-running-requests": "1500"}


def test_conflicts() -> None:
    facts = Facts(mem_fraction_static=0.88)
    assert "schedule-conservativeness" not in flags(window(HELD, retractions=20))
    assert flags(window(BUSY, startup=startup(15), out_of_memory=[Phase.PREFILL], facts=facts)) == {
        "chunked-prefill-size": "4096"
    }
    small = replace(facts, chunked_prefill_size=2048, cuda_graph_max_bs=256)
    crowded = window((300, 300, 0.95), graph=False, startup=startup(2), out_of_memory=[Phase.PREFILL], facts=small)
    assert flags(crowded) == {"mem-fraction-static": "0.8", "cuda-graph-max-bs": "512"}


def test_too_little_was_seen() -> None:
    few = Observation("r", minutes=0.1, samples=[Sample(*HELD)] * 9)
    assert verdicts(judge(few)) == {(0, Verdict.UNKNOWN)}


def test_without_times_nothing_is_said_about_rates() -> None:
    assert not {6, 7} & {f.rule for f in judge(window(BUSY, retractions=20, minutes=None))}


@given(st.integers(1, 1000), st.floats(0, 1))
def test_more_samples_and_clearer_shares_are_surer(samples: int, share: float) -> None:
    assert 0.5 <= share_confidence(share, samples) <= share_confidence(share, samples * 2) <= 1
    assert share_confidence(share, samples) <= share_confidence(0.0, samples)


@given(st.integers(0, 1000), st.floats(0.1, 100))
def test_rate_confidence_is_a_probability(events: int, minutes: float) -> None:
    assert 0.5 <= rate_confidence(events, minutes, 1.0) <= 1


SAMPLES = st.lists(st.builds(Sample, st.integers(0, 999), st.integers(0, 9999), st.floats(0, 1)), max_size=30)


@given(SAMPLES, st.integers(0, 50), st.sets(st.sampled_from(Phase)), st.sampled_from([None, 2.0, 6.0, 20.0]))
def test_advice_never_contradicts_itself(
    samples: list[Sample], retractions: int, memory: set[Phase], free_gb: float | None
) -> None:
    facts = Facts(mem_fraction_static=0.88, schedule_conservativeness=1.0)
    seen = Observation("r", 5.0, samples, retractions, out_of_memory=sorted(memory, key=str), facts=facts)
    if free_gb is not None:
        seen = replace(seen, startup=startup(free_gb))
    findings = judge(seen)
    named = [name for finding in findings for name in finding.flags]
    assert len(named) == len(set(named))
    assert not {5, 6} <= {f.rule for f in findings if "schedule-conservativeness" in f.flags}
    if memory:
        assert not any(f.rule == 9 and f.flags for f in findings)
