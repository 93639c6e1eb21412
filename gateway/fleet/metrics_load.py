"""A worker's load from its Prometheus metrics, where there is no better way: vLLM, older SGLang. Pure."""

from __future__ import annotations

import re

from gateway.fleet.worker import LoadReport

# First of each that a worker has; several samples of one name (ranks, models) are summed, but for usages.
_RUNNING = (b"vllm:num_requests_running", b"sglang:num_running_reqs")
_WAITING = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs")
_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage")
_THROUGHPUT = (b"sglang:gen_throughput",)
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} ", re.MULTILINE)
_SAMPLE = re.compile(
    rb"^(" + b"|".join(_RUNNING + _WAITING + _USAGE + _THROUGHPUT) + rb")(?:\{[^\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE
)


def load_of_metrics(text: bytes, now_s: float) -> LoadReport | None:
    """The report, or None if these are metrics of something else."""
    samples: dict[bytes, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        samples.setdefault(name, []).append(float(value))
    running = _first(samples, _RUNNING)
    if running is None:
        return None
    usages = _first(samples, _USAGE) or [0.0]
    usage = sum(usages) / len(usages)
    pool_tokens = _pool_tokens(text)
    return LoadReport(
        running_requests=int(sum(running)),
        waiting_requests=int(sum(_first(samples, _WAITING) or [])),
        used_tokens=int(usage * pool_tokens),
        max_total_tokens=pool_tokens,
        token_usage=usage,
        gen_throughput=sum(_first(samples, _THROUGHPUT) or []),
        received_s=now_s,
    )


def _first(samples: dict[bytes, list[float]], names: tuple[bytes, ...]) -> list[float] | None:
    return next((samples[name] for name in names if name in samples), None)


def _pool_tokens(text: bytes) -> int:
    """Tokens of vLLM's KV pools; 0 if it does not say."""
    total = 0
    for labels in _CACHE_CONFIG.findall(text):
        sizes = dict(re.findall(rb'(block_size|num_gpu_blocks)="(\d+)"', labels))
        total += int(sizes.get(b"block_size", 0)) * int(sizes.get(b"num_gpu_blocks", 0))
    return total
