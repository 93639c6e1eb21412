"""Workers of other makers: what vLLM and SGLang tell of their load, and a gateway in front of one like vLLM."""

from __future__ import annotations

from gateway.fleet.metrics_load import load_of_metrics
from tests.helpers.fake_worker import FakeWorker, Received, Reply
from tests.helpers.gateway_harness import running_gateway
from tests.helpers.processes import until

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.5
sglang:gen_throughput{model_name="m"} 1.2e3
"""


def test_vllm() -> None:
    report = load_of_metrics(VLLM, 5.0)
    assert report is not None
    assert (report.running_requests, report.waiting_requests, report.token_usage) == (5, 7, 0.5)
    assert (report.max_total_tokens, report.used_tokens, report.received_s) == (16000, 8000, 5.0)


def test_sglang() -> None:
    report = load_of_metrics(SGLANG, 5.0)
    assert report is not None
    assert (report.running_requests, report.waiting_requests) == (4, 1)
    assert (report.token_usage, report.gen_throughput, report.max_total_tokens) == (0.5, 1200.0, 0)


def test_metrics_of_something_else() -> None:
    assert load_of_metrics(b"process_cpu_seconds_total 1.0\n", 0.0) is None
    assert load_of_metrics(b"\xff\x00", 0.0) is None


async def test_a_server_like_vllm_is_served() -> None:
    async def missing(request: Received, reply: Reply) -> None:
        await reply.json({"detail": "Not Found"}, 404)

    async def metrics(request: Received, reply: Reply) -> None:
        await reply.head(content_type="text/plain", content_length=str(len(VLLM)))
        await reply.raw(VLLM)

    others = dict.fromkeys(("/server_info", "/get_server_info", "/model_info", "/v1/loads", "/get_load"), missing)
    async with (
        FakeWorker(other={**others, "/metrics": metrics}) as worker,
        running_gateway([worker], worker_api_key="k") as gateway,
    ):
        (view,) = gateway.gateway.registry.snapshot.workers
        await until(lambda: view.load.report, 5, "a load report")
        assert view.load.report is not None and view.load.report.waiting_requests == 7
        assert view.load.requests == 12
        assert (await gateway.chat()).status_code == 200
        assert {request.header("authorization") for request in worker.requests} == {"Bearer k"}
