"""The Tuning dashboard: the signals of docs/operations.md's table of settings, with their healthy bands drawn in."""

from __future__ import annotations

from deploy.grafana.panels import Band, Board, Choice, Plot, Query, Row, quantiles, rate, share

_WHERE = 'worker=~"$worker"'


def _by_worker(expr: str) -> list[Query]:
    return [Query(f"sum by (worker) ({expr})", "{{worker}}")]


_LOAD = Row(
    "Is there enough to do, and room for it",
    [
        Plot(
            title="Waiting requests",
            text="100 to 2,000 is healthy for throughput. Often 0: clients send too slowly. Above 2,000: they send too "
            "fast, and the scheduler spends its time on the queue.",
            queries=_by_worker(f"canopy_num_queue_reqs{{{_WHERE}}}"),
            band=Band(low=100, high=2000),
            width=12,
        ),
        Plot(
            title="Token usage",
            text="Above 0.9 is good use. Often below with requests waiting: --schedule-conservativeness towards 0.3.",
            queries=_by_worker(f"canopy_token_usage{{{_WHERE}}}"),
            unit="percentunit",
            band=Band(low=0.9),
            most=1,
            width=12,
        ),
        Plot(
            title="Retractions a minute",
            text="About 1 is fine. Many with high usage: --schedule-conservativeness towards 1.3.",
            queries=[Query(rate("canopy_num_retracted_requests_total", "worker", _WHERE) + " * 60", "{{worker}}")],
            band=Band(high=1, alarm=10),
            width=12,
        ),
        Plot(
            title="Memory left after the start",
            text="5 to 8 GB is right. More: --mem-fraction-static up by 0.01 at a time. Less: down, or long prompts "
            "will fail.",
            queries=_by_worker(f"canopy_startup_available_memory_bytes{{{_WHERE}}}"),
            unit="decbytes",
            band=Band(low=5e9, high=8e9),
            width=12,
        ),
    ],
)
_ADVICE = Row(
    "What the tuning guide says",
    [
        Plot(
            title="Findings",
            text="By replica and rule (docs/tuning.md): the height is how sure it is. With flags, these should change; "
            "GET /tuning on the gateway says what was seen and what it means.",
            queries=[
                Query(
                    f"max by (worker, rule, verdict, flags) (canopy_tuning_finding{{{_WHERE}}})",
                    "{{worker}} rule {{rule}} {{verdict}} {{flags}}",
                )
            ],
            unit="percentunit",
            most=1,
            width=24,
        ),
    ],
)
_STEPS = Row(
    "Are steps as fast as they can be",
    [
        Plot(
            title="Decode steps outside CUDA graphs",
            text="Share. On a GPU, much of it: --cuda-graph-max-bs above the number of running requests.",
            queries=[
                Query(
                    share(
                        rate("canopy_cuda_graph_passes_total", "worker", f'mode="decode_none", {_WHERE}'),
                        rate("canopy_cuda_graph_passes_total", "worker", f'mode=~"decode_.*", {_WHERE}'),
                    ),
                    "{{worker}}",
                )
            ],
            unit="percentunit",
            most=1,
        ),
        Plot(
            title="Running requests by their bound",
            text="At 1 with requests waiting and pages free: --max-running-requests up.",
            queries=_by_worker(f"canopy_utilization{{{_WHERE}}}"),
            unit="percentunit",
            most=1,
        ),
        Plot(
            title="Longest gaps between tokens",
            text="p99. Long while prompts are computed: --chunked-prefill-size down to 4096, then 2048.",
            queries=quantiles("canopy_inter_token_latency_seconds", "worker", where=_WHERE, which=(0.99,)),
            unit="s",
        ),
    ],
)
_CACHE = Row(
    "Is the cache used",
    [
        Plot(
            title="Cache hits",
            text="Share of prompt tokens. Low although prompts share beginnings: --schedule-policy lpm.",
            queries=[
                Query(
                    share(
                        rate("canopy_admitted_cached_tokens_total", "worker", _WHERE),
                        rate("canopy_admitted_prompt_tokens_total", "worker", _WHERE),
                    ),
                    "{{worker}}",
                )
            ],
            unit="percentunit",
            most=1,
        ),
        Plot(
            title="Prefix cache",
            text="Share of the pool that only the cache holds. Near 0 under load: no room for prefixes, more replicas "
            "help.",
            queries=_by_worker(f"canopy_kv_evictable_tokens{{{_WHERE}}} / canopy_max_total_num_tokens"),
            unit="percentunit",
            most=1,
        ),
        Plot(
            title="Tokens of retracted requests",
            text="Work that is done twice.",
            queries=[
                Query(
                    rate("canopy_num_retracted_output_tokens_total", "worker", _WHERE)
                    + " + "
                    + rate("canopy_num_retracted_input_tokens_total", "worker", _WHERE),
                    "{{worker}}",
                )
            ],
            unit="cps",
        ),
    ],
)
BOARD = Board(
    uid="canopy-tuning",
    title="Canopy Tuning",
    text="Green is healthy. What to change outside it is in each plot's description and in docs/operations.md.",
    choices=[Choice("worker", "canopy_num_running_reqs", "worker")],
    rows=[_LOAD, _ADVICE, _STEPS, _CACHE],
)
