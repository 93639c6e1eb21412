"""The Replica dashboard: KV pool, batch, queue, retractions, step time, graphs and latency of one or more replicas."""

from __future__ import annotations

from deploy.grafana.panels import Band, Board, Choice, Kind, Plot, Query, Row, mean, quantiles, rate

_WHERE = 'worker=~"$worker"'
_FRONTEND = f'job="canopy-worker", {_WHERE}'  # other processes have metrics of these names too


def _gauge(name: str, legend: str = "{{worker}}") -> Query:
    return Query(f"sum by (worker) ({name}{{{_WHERE}}})", legend)


def _rate(name: str, legend: str = "{{worker}}", by: str = "worker") -> Query:
    return Query(rate(name, by, _WHERE), legend)


_POOL = Row(
    "KV pool",
    [
        Plot(
            title="Pages",
            text="Used: running requests hold them. Cached: the prefix cache does, and gives them up. Free: nobody.",
            queries=[Query(f"sum by (state) (canopy_kv_pool_pages{{{_WHERE}}})", "{{state}}")],
            kind=Kind.STACK,
        ),
        Plot(
            title="Token usage",
            text="Share of the pool in use. Above 0.9 is good use.",
            queries=[_gauge("canopy_token_usage")],
            unit="percentunit",
            most=1,
        ),
        Plot(
            title="New token ratio",
            text="Share of their remaining output that running requests are charged at admission. It falls while "
            "nothing is retracted, and jumps when something is.",
            queries=[_gauge("canopy_new_token_ratio")],
            most=1,
        ),
    ],
)
_QUEUE = Row(
    "Batch and queue",
    [
        Plot(
            title="Requests",
            text="Running, waiting, and waiting again after a retraction.",
            queries=[
                _gauge("canopy_num_running_reqs", "{{worker}} running"),
                _gauge("canopy_num_queue_reqs", "{{worker}} waiting"),
                _gauge("canopy_num_retracted_reqs", "{{worker}} retracted"),
            ],
        ),
        Plot(
            title="Sequences of a step",
            text="Larger batches give more tokens a second, each later.",
            queries=[
                mean("canopy_batch_size", "worker", where=_WHERE),
                *quantiles("canopy_batch_size", "", where=_WHERE),
            ],
        ),
        Plot(
            title="Retractions and preemptions",
            text="A minute. Retractions: --schedule-conservativeness is too low. Preemptions: urgent requests came.",
            queries=[
                Query(
                    rate(f"canopy_num_{kind}_requests_total", "worker", _WHERE) + " * 60",
                    f"{{{{worker}}}} {kind}",
                )
                for kind in ("retracted", "preempted")
            ],
            band=Band(high=1, alarm=10),
        ),
    ],
)
_STEPS = Row(
    "Steps",
    [
        Plot(
            title="Step time",
            text="What a token takes for everybody in the batch.",
            queries=quantiles("canopy_step_time_seconds", "worker", where=_WHERE, which=(0.5, 0.99)),
            unit="s",
        ),
        Plot(
            title="Steps by kind",
            text="decode_none on a GPU: the batch is larger than the largest captured CUDA graph, or shares a step "
            "with a prompt.",
            queries=[_rate("canopy_cuda_graph_passes_total", "{{mode}}", "mode")],
            unit="ops",
            kind=Kind.STACK,
        ),
        Plot(
            title="Tokens computed",
            text="Prefill is what caches did not hold, and what was retracted.",
            queries=[
                _rate("canopy_computed_prompt_tokens_total", "{{worker}} prefill"),
                _rate("canopy_admitted_cached_tokens_total", "{{worker}} cached"),
                _rate("canopy_sampled_tokens_total", "{{worker}} decode"),
            ],
            unit="cps",
        ),
    ],
)
_LATENCY = Row(
    "Latency, at the replica",
    [
        Plot(
            title="Time to first token",
            text="From arrival at the replica. Its part in the queue is the next plot.",
            queries=quantiles("canopy_time_to_first_token_seconds", "worker", where=_WHERE, which=(0.5, 0.99)),
            unit="s",
        ),
        Plot(
            title="Time in the queue",
            text="From arrival to first admission.",
            queries=quantiles("canopy_queue_time_seconds", "worker", where=_WHERE, which=(0.5, 0.99)),
            unit="s",
        ),
        Plot(
            title="Inter-token latency",
            text="Between two tokens of a sequence, all seconds in which tokens came.",
            queries=[
                Query(
                    f"sum by (le) (increase(canopy_inter_token_latency_seconds_bucket{{{_WHERE}}}[$__rate_interval]))",
                    "{{le}}",
                )
            ],
            unit="s",
            kind=Kind.HEATMAP,
        ),
        Plot(
            title="Time per output token",
            text="From first to last token, a token: how fast each answer was as a whole.",
            queries=quantiles("canopy_time_per_output_token_seconds", "worker", where=_WHERE, which=(0.5, 0.99)),
            unit="s",
        ),
        Plot(
            title="Whole sequences",
            text="From arrival to the end.",
            queries=quantiles("canopy_e2e_request_latency_seconds", "worker", where=_WHERE, which=(0.5, 0.99)),
            unit="s",
        ),
        Plot(
            title="How sequences ended",
            text="length: at max_tokens. abort: refused, failed, or its client left.",
            queries=[_rate("canopy_finished_requests_total", "{{reason}}", "reason")],
            unit="reqps",
            kind=Kind.STACK,
        ),
    ],
)
_SIZES = Row(
    "Work and machine",
    [
        Plot(
            title="Lengths",
            text="Tokens of a prompt, what of it was not cached, and of an output: means.",
            queries=[
                mean(f"canopy_{kind}_length_tokens", "worker", where=_WHERE)
                for kind in ("prompt", "uncached_prompt", "output")
            ],
        ),
        Plot(
            title="CPU",
            text="Cores. A scheduler near 1 bounds the replica: its loop has one thread.",
            queries=[
                _rate("canopy_scheduler_cpu_seconds_total", "{{worker}} scheduler"),
                Query(rate("process_cpu_seconds_total", "worker", _FRONTEND), "{{worker}} frontend"),
            ],
        ),
        Plot(
            title="Memory of the frontend",
            text="Resident bytes.",
            queries=[Query(f"sum by (worker) (process_resident_memory_bytes{{{_FRONTEND}}})", "{{worker}}")],
            unit="bytes",
        ),
    ],
)
BOARD = Board(
    uid="canopy-replica",
    title="Canopy Replica",
    text="One engine from the inside.",
    choices=[Choice("worker", "canopy_num_running_reqs", "worker")],
    rows=[_POOL, _QUEUE, _STEPS, _LATENCY, _SIZES],
)
