"""The rules of the tuning guide about load and memory, numbered as in docs/tuning.md. Pure: observation to finding.

A rule that has nothing to say returns None. Thresholds are the guide's; "often" is more than half of the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from common.tuning.finding import MIN_SAMPLES, OFTEN, Finding, Verdict, rate_confidence, share_confidence
from common.tuning.observation import Observation, Phase

Rule = Callable[[Observation], "Finding | None"]

HEALTHY_QUEUE = (100, 2000)  # waiting requests
GOOD_USAGE = 0.9  # of the KV pool
LOWER_CONSERVATIVENESS, HIGHER_CONSERVATIVENESS = 0.3, 1.3
RETRACTIONS_PER_MINUTE = 1.0  # accepted
HEALTHY_FREE_GB = (5.0, 8.0)
TOO_FREE_GB = 10.0
FRACTION_STEP = 0.01
CHUNKS = (4096, 2048)  # tokens, in this order
FRACTIONS = (0.8, 0.7)
GRAPH_SIZES = (512, 768)  # requests
FEWER_ROWS = 0.75
SHARED_PREFIXES = 0.3  # hit rate
_AUTOMATIC = "Conservativeness is learned (auto), and follows what it sees by itself."


def queue_often_empty(seen: Observation) -> Finding | None:
    """1: the client sends too slowly."""
    share = seen.share([sample.queued == 0 for sample in seen.samples])
    if len(seen.samples) < MIN_SAMPLES or share <= OFTEN:
        return None
    text = f"no request waited in {share:.0%} of {len(seen.samples)} samples, {seen.running:.0f} ran"
    means = "The client sends too slowly to fill the batch: raise its concurrency or rate; no flag helps."
    return Finding(1, Verdict.CHANGE, text, means, confidence=share_confidence(share, len(seen.samples)))


def queue_healthy(seen: Observation) -> Finding | None:
    """2: waiting requests in the band, or below it."""
    low, high = HEALTHY_QUEUE
    if len(seen.samples) < MIN_SAMPLES or not 0 < seen.queued <= high:
        return None
    text = f"{seen.queued:.0f} requests waited in the median"
    if seen.queued >= low:
        return Finding(2, Verdict.HEALTHY, text, f"The queue is in its healthy band of {low} to {high}.")
    return Finding(2, Verdict.NOTE, text, f"Below the band of {low} to {high}: a little more load would not hurt.")


def queue_too_long(seen: Observation) -> Finding | None:
    """3: more waits than scheduling is cheap for."""
    share = seen.share([sample.queued > HEALTHY_QUEUE[1] for sample in seen.samples])
    if len(seen.samples) < MIN_SAMPLES or share <= OFTEN:
        return None
    text = f"over {HEALTHY_QUEUE[1]} requests waited in {share:.0%} of {len(seen.samples)} samples"
    means = "Send more slowly, or add replicas: a longer queue only costs scheduling time."
    return Finding(3, Verdict.CHANGE, text, means, confidence=share_confidence(share, len(seen.samples)))


def usage_good(seen: Observation) -> Finding | None:
    """4: the KV pool is well used."""
    share = seen.share([sample.usage > GOOD_USAGE for sample in seen.samples])
    if len(seen.samples) < MIN_SAMPLES or share <= OFTEN:
        return None
    text = f"token usage above {GOOD_USAGE} in {share:.0%} of {len(seen.samples)} samples"
    confidence = share_confidence(share, len(seen.samples))
    return Finding(4, Verdict.HEALTHY, text, "The KV pool is well used.", confidence=confidence)


def too_conservative(seen: Observation) -> Finding | None:
    """5: requests wait though the pool has room. Not when as many run as may."""
    cap = seen.row_cap
    held_back = [s.usage < GOOD_USAGE and s.queued > 0 for s in seen.samples]
    share = seen.share(held_back)
    if len(seen.samples) < MIN_SAMPLES or share <= OFTEN:
        return None
    text = f"requests waited while token usage was below {GOOD_USAGE} in {share:.0%} of {len(seen.samples)} samples"
    confidence = share_confidence(share, len(seen.samples))
    if cap is not None and seen.running >= 0.95 * cap:
        means = f"All {cap} requests that may run did: more need a higher --max-running-requests, if memory allows."
        flags = {"max-running-requests": str(cap + cap // 2)}
        return Finding(5, Verdict.CHANGE, text, means, flags, confidence)
    now = seen.facts.schedule_conservativeness
    already = "low" if now is not None and now <= LOWER_CONSERVATIVENESS else None
    means = "The scheduler reserves for answers longer than they become: less conservativeness admits more of them."
    return _conservativeness(5, seen, text, means, LOWER_CONSERVATIVENESS, already, confidence)


def too_bold(seen: Observation) -> Finding | None:
    """6: the pool overflows often."""
    rate, minutes = seen.retractions_per_minute, seen.minutes
    share = seen.share([sample.usage > GOOD_USAGE for sample in seen.samples])
    if rate is None or minutes is None or rate <= RETRACTIONS_PER_MINUTE or share <= OFTEN:
        return None
    text = f"{rate:.1f} retractions a minute at token usage {seen.usage:.2f}"
    confidence = rate_confidence(seen.retractions, minutes, RETRACTIONS_PER_MINUTE)
    now = seen.facts.schedule_conservativeness
    already = "high" if now is not None and now >= HIGHER_CONSERVATIVENESS else None
    means = "Answers outgrow what was reserved for them, and work is done twice: reserve more."
    return _conservativeness(6, seen, text, means, HIGHER_CONSERVATIVENESS, already, confidence)


def _conservativeness(
    rule: int, seen: Observation, text: str, means: str, value: float, already: str | None, confidence: float
) -> Finding:
    """Advice to set it to `value`, unless it is learned, or `already` so low or high."""
    if seen.facts.conservativeness_auto:
        return Finding(rule, Verdict.NOTE, text, _AUTOMATIC, confidence=confidence)
    if already is not None:
        return Finding(rule, Verdict.NOTE, text, f"Conservativeness is {already} already.", confidence=confidence)
    return Finding(rule, Verdict.CHANGE, text, means, {"schedule-conservativeness": str(value)}, confidence)


def retractions_rare(seen: Observation) -> Finding | None:
    """7: some retractions are the price of a full pool."""
    rate, minutes = seen.retractions_per_minute, seen.minutes
    if rate is None or minutes is None or not 0 < rate <= RETRACTIONS_PER_MINUTE:
        return None
    confidence = rate_confidence(seen.retractions, minutes, RETRACTIONS_PER_MINUTE)
    return Finding(7, Verdict.HEALTHY, f"{rate:.2f} retractions a minute", "Acceptable.", confidence=confidence)


def free_memory(seen: Observation) -> Finding | None:
    """8, 9, 10: what the GPU has left after the start."""
    if seen.startup is None or seen.startup.device != "gpu":
        return None
    free, (low, high) = seen.startup.available_gb, HEALTHY_FREE_GB
    text = f"{free:.1f} GB of GPU memory free after the start"
    if low <= free <= high:
        return Finding(8, Verdict.HEALTHY, text, "Keep --mem-fraction-static.")
    if free > TOO_FREE_GB:
        means = f"More of it can hold KV. {_by_hand(seen, 'Raise')}".rstrip()
        return Finding(9, Verdict.CHANGE, text, means, _moved_fraction(seen, FRACTION_STEP))
    if free < low:
        means = f"Activations may not find room under load. {_by_hand(seen, 'Lower')}".rstrip()
        return Finding(10, Verdict.CHANGE, text, means, _moved_fraction(seen, -FRACTION_STEP))
    return Finding(9, Verdict.NOTE, text, "Slightly more than needed.")


def out_of_memory(seen: Observation) -> Finding | None:
    """11, 12, 13: first what the failing phase needs, then less for the pool."""
    if not seen.out_of_memory:
        return None
    counts = {phase: list(seen.out_of_memory).count(phase) for phase in Phase}
    text = ", ".join(
        f"{'once' if count == 1 else f'{count} times'} in {phase.value}" for phase, count in counts.items() if count
    )
    text = f"out of memory {text}"
    chunk, rows = seen.chunk_tokens, seen.row_cap
    if counts[Phase.PREFILL] >= max(1, counts[Phase.DECODE]):
        smaller = next((size for size in CHUNKS if chunk is None or chunk < 0 or chunk > size), None)
        if smaller is not None:
            flags = {"chunked-prefill-size": str(smaller)}
            return Finding(11, Verdict.CHANGE, text, "Smaller chunks need less memory for activations.", flags)
    elif counts[Phase.DECODE] and rows is not None and rows > 1:
        flags = {"max-running-requests": str(max(1, int(rows * FEWER_ROWS)))}
        return Finding(12, Verdict.CHANGE, text, "Fewer running requests need less.", flags)
    return _smaller_pool(seen, text)


def graphs_missed(seen: Observation) -> Finding | None:
    """14: batches larger than the largest captured graph."""
    limit = seen.facts.cuda_graph_max_bs
    decodes = [sample for sample in seen.samples if sample.cuda_graph is not None]
    missed = [sample.running for sample in decodes if sample.cuda_graph is False]
    if len(decodes) < MIN_SAMPLES or len(missed) <= OFTEN * len(decodes):
        return None
    text = f"{len(missed)} of {len(decodes)} decode samples without a CUDA graph, at {median(missed):.0f} running"
    if limit is None:
        return Finding(14, Verdict.UNKNOWN, text, "The largest captured batch is not known; give --facts.")
    # Batches of any size have none while prompts share their step.
    if sum(running > limit for running in missed) <= OFTEN * len(decodes):
        return Finding(14, Verdict.NOTE, text, f"Not for their size: graphs go up to {limit}.")
    larger = next((size for size in GRAPH_SIZES if size > limit), None)
    if larger is None:
        return Finding(14, Verdict.NOTE, text, f"Graphs go up to {limit} already.")
    flags = {"cuda-graph-max-bs": str(larger)} | _room_for_graphs(seen)
    means = "Graphs for larger batches, and a little less KV to make room for them."
    return Finding(14, Verdict.CHANGE, text, means, flags, share_confidence(len(missed) / len(decodes), len(decodes)))


def shared_prefixes(seen: Observation) -> Finding | None:
    """19: prompts share beginnings, and the queue is long enough to choose from."""
    policy = seen.facts.schedule_policy
    waits = seen.share([sample.queued > 0 for sample in seen.samples])
    if seen.hit_rate < SHARED_PREFIXES or waits <= OFTEN or len(seen.samples) < MIN_SAMPLES:
        return None
    text = f"{seen.hit_rate:.0%} of prompt tokens came from the prefix cache while requests waited"
    if policy is None:
        return Finding(19, Verdict.UNKNOWN, text, "The schedule policy is not known; give --facts.")
    if policy != "fcfs":
        return Finding(19, Verdict.HEALTHY, text, f"--schedule-policy {policy} makes use of it.")
    means = "Requests that share a prefix should run together; cold ones wait a little longer."
    return Finding(
        19, Verdict.CHANGE, text, means, {"schedule-policy": "lpm"}, share_confidence(waits, len(seen.samples))
    )


def _smaller_pool(seen: Observation, text: str) -> Finding:
    fraction = seen.facts.mem_fraction_static
    if fraction is None:
        means = f"Lower --mem-fraction-static to {FRACTIONS[0]}; its present value is not known."
        return Finding(13, Verdict.CHANGE, text, means, {"mem-fraction-static": str(FRACTIONS[0])})
    lower = next((value for value in FRACTIONS if value < fraction), None)
    if lower is None:
        return Finding(13, Verdict.NOTE, text, "The pool is small already: serve a smaller model or use more GPUs.")
    return Finding(
        13, Verdict.CHANGE, text, "Less memory for KV leaves more for passes.", {"mem-fraction-static": str(lower)}
    )


def _moved_fraction(seen: Observation, by: float) -> dict[str, str]:
    fraction = seen.facts.mem_fraction_static
    return {} if fraction is None else {"mem-fraction-static": f"{fraction + by:.3g}"}


def _by_hand(seen: Observation, verb: str) -> str:
    """What to do where the flag's new value cannot be given."""
    if seen.facts.mem_fraction_static is not None:
        return ""
    return f"{verb} --mem-fraction-static by {FRACTION_STEP}; its present value is not known."


def _room_for_graphs(seen: Observation) -> dict[str, str]:
    free = seen.startup.available_gb if seen.startup is not None and seen.startup.device == "gpu" else None
    return {} if free is not None and free > HEALTHY_FREE_GB[1] else _moved_fraction(seen, -2 * FRACTION_STEP)


LOAD_RULES: tuple[Rule, ...] = (
    queue_often_empty,
    queue_healthy,
    queue_too_long,
    usage_good,
    too_conservative,
    too_bold,
    retractions_rare,
    free_memory,
    out_of_memory,
    graphs_missed,
    shared_prefixes,
)
