"""The Gateway dashboard: what comes, what is turned away, what fails on the way, and what the gateway itself costs."""

from __future__ import annotations

from deploy.grafana.panels import Band, Board, Choice, Kind, Plot, Query, Row, quantiles, rate

_WHERE = 'instance=~"$instance"'


def _sum(name: str, by: str = "instance") -> Query:
    return Query(f"sum by ({by}) (canopy_gateway_{name}{{{_WHERE}}})", f"{{{{{by}}}}}")


def _rate(name: str, by: str) -> Query:
    return Query(rate(f"canopy_gateway_{name}_total", by, _WHERE), f"{{{{{by}}}}}")


def _process(expr: str, legend: str = "{{instance}} {{process}}") -> Query:
    return Query(expr.replace("@", f'{{job="canopy-gateway", {_WHERE}}}'), legend)


_PATH = Row(
    "Path",
    [
        Plot(
            title="Requests by endpoint",
            text="Answers, whatever their status.",
            queries=[_rate("requests", "endpoint")],
            unit="reqps",
            kind=Kind.STACK,
        ),
        Plot(
            title="Durations",
            text="From the whole request to the end of its answer.",
            queries=quantiles("canopy_gateway_request_duration_seconds", "endpoint", where=_WHERE),
            unit="s",
        ),
        Plot(
            title="Choosing a replica",
            text="Time that routing takes. It grows with replicas and prompt length; above 1 ms something is wrong.",
            queries=quantiles("canopy_gateway_choice_duration_seconds", "", where=_WHERE),
            unit="s",
            band=Band(high=0.001, alarm=0.01),
        ),
        Plot(
            title="In flight, by age",
            text="Old ones that stay are long answers, or hung.",
            queries=[_sum("requests_in_flight_by_age", "age")],
            kind=Kind.STACK,
        ),
        Plot(
            title="Oldest request",
            text="Its age.",
            queries=[
                Query(f"max by (instance) (canopy_gateway_oldest_request_age_seconds{{{_WHERE}}})", "{{instance}}")
            ],
            unit="s",
        ),
        Plot(
            title="Clients that left",
            text="Before the end of their answers.",
            queries=[_rate("client_disconnects", "instance")],
            unit="reqps",
        ),
    ],
)
_QUEUE = Row(
    "Queue",
    [
        Plot(
            title="Waiting and admitted",
            text="Admitted requests are bounded by --max-concurrent-requests, waiting ones by --queue-size.",
            queries=[
                Query(f"sum(canopy_gateway_queue_requests{{{_WHERE}}})", "waiting"),
                Query(f"sum(canopy_gateway_admitted_requests{{{_WHERE}}})", "admitted"),
            ],
        ),
        Plot(
            title="Wait",
            text="Of requests that were let in from the queue, and of the first of those that wait now.",
            queries=[
                *quantiles("canopy_gateway_queue_wait_seconds", "", where=_WHERE),
                Query(f"max(canopy_gateway_queue_oldest_age_seconds{{{_WHERE}}})", "oldest now"),
            ],
            unit="s",
            band=Band(high=10),
        ),
        Plot(
            title="Turned away",
            text="By the code of their error answer.",
            queries=[_rate("turned_away", "code")],
            unit="reqps",
            kind=Kind.STACK,
        ),
    ],
)
_ERRORS = Row(
    "Errors and breakers",
    [
        Plot(
            title="Failed attempts",
            text="By what failed between gateway and replica.",
            queries=[_rate("upstream_errors", "kind")],
            unit="ops",
            kind=Kind.STACK,
        ),
        Plot(
            title="Retries",
            text="Attempts after the first, by cause.",
            queries=[_rate("retries", "cause")],
            unit="ops",
            kind=Kind.STACK,
        ),
        Plot(
            title="Breakers",
            text="Of each replica: 0 closed, 1 open, 2 half-open.",
            queries=[Query(f"max by (worker) (canopy_gateway_worker_breaker_state{{{_WHERE}}})", "{{worker}}")],
            most=2,
            band=Band(high=1),
        ),
        Plot(
            title="Breaker moves",
            text="By the state they came into.",
            queries=[_rate("breaker_transitions", "state")],
            unit="ops",
            kind=Kind.STACK,
        ),
        Plot(
            title="Failed probes",
            text="Health probes that replicas did not answer well.",
            queries=[_rate("probe_failures", "instance")],
            unit="ops",
        ),
        Plot(
            title="Errors",
            text="Answers of 500 and more, by status.",
            queries=[
                Query(
                    rate("canopy_gateway_requests_total", "status", f'status=~"5..", {_WHERE}') + " or vector(0)",
                    "{{status}}",
                )
            ],
            unit="reqps",
            kind=Kind.STACK,
        ),
    ],
)
_INDEX = Row(
    "Prefix index",
    [
        Plot(
            title="Memory",
            text="Bounded by --prefix-index-bytes, in each process.",
            queries=[_sum("prefix_index_bytes")],
            unit="bytes",
        ),
        Plot(
            title="Blocks",
            text="Blocks of prompt text remembered, all replicas.",
            queries=[_sum("prefix_index_blocks")],
        ),
        Plot(
            title="Evictions",
            text="Blocks dropped for lack of room: in the index, or in what a replica's cache can hold.",
            queries=[_rate("prefix_index_evicted_blocks", "instance")],
            unit="ops",
        ),
    ],
)
_COST = Row(
    "The gateway itself",
    [
        Plot(
            title="CPU",
            text="Cores; a process has one at most. Near 1: more --gateway-processes.",
            queries=[_process("rate(process_cpu_seconds_total@[$__rate_interval])")],
            most=1,
            band=Band(high=0.8),
        ),
        Plot(
            title="Event loop lag",
            text="How much later than asked the loop wakes; every step of every request waits that long.",
            queries=quantiles("canopy_gateway_event_loop_lag_seconds", "instance", where=_WHERE, which=(0.5, 0.99)),
            unit="s",
            band=Band(high=0.05, alarm=0.25),
        ),
        Plot(
            title="Memory",
            text="Resident bytes of each process.",
            queries=[_process("process_resident_memory_bytes@")],
            unit="bytes",
        ),
        Plot(
            title="Open files",
            text="Share of the process's limit; connections are most of them.",
            queries=[_process("process_open_fds@ / process_max_fds@")],
            unit="percentunit",
            band=Band(high=0.5, alarm=0.8),
        ),
    ],
)
BOARD = Board(
    uid="canopy-gateway",
    title="Canopy Gateway",
    text="The way of requests through the gateway.",
    choices=[Choice("instance", "canopy_gateway_requests_in_flight", "instance")],
    rows=[_PATH, _QUEUE, _ERRORS, _INDEX, _COST],
)
