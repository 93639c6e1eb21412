"""The Fleet dashboard: is the service good, how much does it serve, who are its replicas, does routing hit caches."""

from __future__ import annotations

from deploy.grafana.panels import Band, Board, Choice, Kind, Plot, Query, Row, quantiles, rate, share

_MODEL = 'model=~"$model"'


def _number(title: str, text: str, expr: str, unit: str = "short", band: Band | None = None) -> Plot:
    return Plot(title=title, text=text, queries=[Query(expr)], unit=unit, kind=Kind.NUMBER, band=band, width=3)


_NOW = Row(
    "Now",
    [
        _number(
            "Replicas ready",
            "Replicas that get requests.",
            'max(sum by (instance, process) (canopy_gateway_workers{state="ready"}))',
            band=Band(low=1),
        ),
        _number("Requests/s", "Answers a second.", "sum(model:canopy_requests:rate1m)", "reqps"),
        _number(
            "Errors",
            "Share of requests that failed in the last 5 minutes; the fault of the service, not of clients.",
            "canopy:request_errors:ratio_rate5m",
            "percentunit",
            Band(high=0.005, alarm=0.02),
        ),
        _number(
            "TTFT p50",
            "Median time to first token, 5 minutes.",
            "max(model:canopy_ttft_seconds:p50_5m)",
            "s",
            Band(high=1),
        ),
        _number(
            "TTFT p99",
            "99th percentile, 5 minutes.",
            "max(model:canopy_ttft_seconds:p99_5m)",
            "s",
            Band(high=2.5, alarm=10),
        ),
        _number(
            "Late streams",
            "Share of streams without a first token in 2.5 s. The objective allows 1 %.",
            "max(model:canopy_ttft_late:ratio_rate5m)",
            "percentunit",
            Band(high=0.01, alarm=0.06),
        ),
        _number(
            "Cache hits",
            "Share of prompt tokens that caches held, 10 minutes.",
            "max(model:canopy_hit:ratio_rate10m)",
            "percentunit",
        ),
        _number(
            "Alerts", "Alerts that fire.", 'count(ALERTS{alertstate="firing"}) or vector(0)', band=Band(high=1, alarm=3)
        ),
    ],
)
_LATENCY = Row(
    "Latency, at the gateway",
    [
        Plot(
            title="Time to first token",
            text="From the whole request to the first bytes of a streamed answer: queues, routing, prefill.",
            queries=quantiles("canopy_gateway_time_to_first_token_seconds", "model", where=_MODEL),
            unit="s",
            band=Band(high=2.5),
        ),
        Plot(
            title="Inter-token latency",
            text="Between two pieces of a stream. High: replicas run large batches, or long prompts share their steps.",
            queries=quantiles("canopy_gateway_inter_token_latency_seconds", "model", where=_MODEL),
            unit="s",
        ),
        Plot(
            title="Whole requests",
            text="From the whole request to the end of its answer.",
            queries=quantiles("canopy_gateway_request_duration_seconds", "model", where=_MODEL),
            unit="s",
        ),
    ],
)
_THROUGHPUT = Row(
    "Throughput",
    [
        Plot(
            title="Requests by status",
            text="499: the client left. 429 and 503: turned away. 502, 504: replicas failed.",
            queries=[Query(rate("canopy_gateway_requests_total", "status", _MODEL), "{{status}}")],
            unit="reqps",
            kind=Kind.STACK,
        ),
        Plot(
            title="Tokens",
            text="Of answers that told their usage.",
            queries=[
                Query(rate(f"canopy_gateway_{kind}_tokens_total", "", _MODEL), kind)
                for kind in ("prompt", "cached", "completion")
            ],
            unit="cps",
        ),
        Plot(
            title="Tokens generated, by replica",
            text="Those of answers that are still being written included.",
            queries=[Query(rate("canopy_sampled_tokens_total", "worker"), "{{worker}}")],
            unit="cps",
            kind=Kind.STACK,
        ),
    ],
)
_REPLICAS = Row(
    "Replicas",
    [
        Plot(
            title="Replicas by state",
            text="As the gateways see them.",
            queries=[Query("max by (state) (canopy_gateway_workers)", "{{state}}")],
            kind=Kind.STACK,
        ),
        Plot(
            title="Requests running and waiting",
            text="Uneven running requests: look at routing. Waiting ones everywhere: the fleet is too small.",
            queries=[
                Query("sum by (worker) (canopy_num_running_reqs)", "{{worker}} running"),
                Query("sum by (worker) (canopy_num_queue_reqs)", "{{worker}} waiting"),
            ],
        ),
        Plot(
            title="KV pool in use",
            text="Share that running requests hold. Near 1 with waiting requests: the pool bounds the throughput.",
            queries=[Query("max by (worker) (canopy_token_usage)", "{{worker}}")],
            unit="percentunit",
            most=1,
        ),
        Plot(
            title="Age of replicas",
            text="Time since the start. A saw-tooth is a crash loop.",
            queries=[Query("time() - max by (worker) (canopy_start_time_seconds)", "{{worker}}")],
            unit="s",
        ),
        Plot(
            title="Retractions",
            text="Requests a minute that gave up their place for want of KV pages, and are computed again.",
            queries=[Query(rate("canopy_num_retracted_requests_total", "worker") + " * 60", "{{worker}}")],
            band=Band(high=1, alarm=10),
        ),
        Plot(
            title="Cache hits, by replica",
            text="Share of prompt tokens found in the prefix cache at admission.",
            queries=[
                Query(
                    share(
                        rate("canopy_admitted_cached_tokens_total", "worker"),
                        rate("canopy_admitted_prompt_tokens_total", "worker"),
                    ),
                    "{{worker}}",
                )
            ],
            unit="percentunit",
            most=1,
        ),
    ],
)
_ROUTING = Row(
    "Routing",
    [
        Plot(
            title="Why replicas were chosen",
            text="Reasons are those of x-canopy-route.",
            queries=[Query(rate("canopy_gateway_choices_total", "reason"), "{{reason}}")],
            unit="reqps",
            kind=Kind.STACK,
        ),
        Plot(
            title="Cached tokens, expected and true",
            text="Far apart: the gateway's picture of the caches is wrong.",
            queries=[
                Query(rate("canopy_gateway_predicted_cached_tokens_total", ""), "expected"),
                Query(rate("canopy_gateway_actual_cached_tokens_total", ""), "true"),
            ],
            unit="cps",
        ),
        Plot(
            title="Prediction error",
            text="Tokens expected too many or too few in caches, by prompt token.",
            queries=[
                Query(
                    rate("canopy_gateway_prediction_error_tokens_total", "direction")
                    + f" / scalar({rate('canopy_gateway_prompt_tokens_total', '')} > 0)",
                    "{{direction}}",
                ),
                Query("canopy:prediction_error:ratio_rate15m", "15 minutes"),
            ],
            unit="percentunit",
            band=Band(high=0.2),
        ),
        Plot(
            title="Attempts, by replica",
            text="Requests that the gateways sent to each.",
            queries=[Query(rate("canopy_gateway_worker_requests_total", "worker"), "{{worker}}")],
            unit="reqps",
            kind=Kind.STACK,
        ),
        Plot(
            title="In flight, by replica",
            text="Requests of the gateways at each replica.",
            queries=[Query("sum by (worker) (canopy_gateway_worker_requests_in_flight)", "{{worker}}")],
            kind=Kind.STACK,
        ),
        Plot(
            title="Prompt tokens still to compute, by replica",
            text="What the gateways think waits for prefill.",
            queries=[Query("sum by (worker) (canopy_gateway_worker_pending_tokens)", "{{worker}}")],
        ),
    ],
)
BOARD = Board(
    uid="canopy-fleet",
    title="Canopy Fleet",
    text="The service as its clients see it, its replicas, and how requests get to them.",
    choices=[Choice("model", "canopy_gateway_worker_state", "model")],
    rows=[_NOW, _LATENCY, _THROUGHPUT, _REPLICAS, _ROUTING],
)
