"""GET /tuning and its series: the findings of `canopy tune`, from workers' metrics over a sliding window."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from common.tuning.judge import judge
from common.tuning.observation import Facts
from common.tuning.replica_watch import ReplicaWatch, series_by_replica
from gateway.tuning.watch import TuningWatch
from tests.helpers.fake_worker import FakeWorker, Received, Reply, Script
from tests.helpers.gateway_harness import RunningGateway, running_gateway


def metrics(*, running: int, queued: int, usage: float, retracted: int = 0) -> str:
    """A worker's, as much of it as counts."""
    return (
        "# HELP canopy_num_running_reqs Requests\n# TYPE canopy_num_running_reqs gauge\n"
        f'canopy_num_running_reqs{{model_name="m"}} {running}\ncanopy_num_queue_reqs{{model_name="m"}} {queued}\n'
        f'canopy_token_usage{{model_name="m"}} {usage}\ncanopy_max_running_requests{{model_name="m"}} 400.0\n'
        f'canopy_num_retracted_requests_total{{model_name="m"}} {retracted}\n'
    )


HELD_BACK = metrics(running=50, queued=300, usage=0.5)
FULL = metrics(running=200, queued=300, usage=0.95)


def told(text: str) -> Script:
    """Answers GET /metrics."""

    async def answer(request: Received, reply: Reply) -> None:
        await reply.head(content_type="text/plain", content_length=str(len(text)))
        await reply.raw(text.encode())

    return answer


def watch_of(gateway: RunningGateway) -> TuningWatch:
    assert gateway.gateway.tuning is not None
    return gateway.gateway.tuning


async def looked(gateway: RunningGateway, times: int) -> dict[str, dict[str, object]]:
    """Findings of the only worker by rule, after so many looks more."""
    for _ in range(times):
        await watch_of(gateway).look()
    (replica,) = (await gateway.client.get("/tuning")).json()["replicas"]
    return {str(finding["rule"]): finding for finding in replica["findings"]}


async def test_findings_come_and_go_with_the_window() -> None:
    async with FakeWorker() as worker, running_gateway([worker], tuning_window_s=0.5) as gateway:
        worker.other["/metrics"] = told(HELD_BACK)
        found = await looked(gateway, 12)
        assert found["5"]["verdict"] == "change"
        assert found["5"]["flags"] == {"schedule-conservativeness": "0.3"}
        assert found["5"]["saw"] and found["5"]["means"] and 0.5 < float(str(found["5"]["confidence"])) <= 1
        answer = (await gateway.client.get("/tuning")).json()
        assert answer["flags"] == {"schedule-conservativeness": "0.3"}
        text = (await gateway.client.get("/metrics")).text
        assert 'rule="5",verdict="change",flags="--schedule-conservativeness 0.3"' in text
        worker.other["/metrics"] = told(FULL)
        found = await looked(gateway, 60)
        assert "5" not in found
        assert found["4"]["verdict"] == "healthy"
        text = (await gateway.client.get("/metrics")).text
        assert 'rule="5"' not in text
        assert 'rule="4"' in text


async def test_a_worker_that_is_gone_is_forgotten() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        worker.other["/metrics"] = told(FULL)
        await looked(gateway, 1)
        gateway.gateway.registry.remove(worker.url)
        await watch_of(gateway).look()
        assert watch_of(gateway).judged == []
        assert "canopy_tuning_finding{" not in (await gateway.client.get("/metrics")).text


async def test_workers_without_such_metrics_are_not_judged() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        worker.other["/metrics"] = told("vllm:num_requests_running 3\n")
        await watch_of(gateway).look()
        assert (await gateway.client.get("/tuning")).json()["replicas"] == []


async def test_it_can_be_off() -> None:
    async with running_gateway([], tuning_interval_s=0) as gateway:
        answer = await gateway.client.get("/tuning")
        assert answer.status_code == 404
        assert "--tuning-interval-s" in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", [HELD_BACK, FULL, metrics(running=3, queued=0, usage=0.1)])
def test_a_sliding_window_judges_as_one_that_is_watched_whole(text: str) -> None:
    whole, sliding = ReplicaWatch("r"), ReplicaWatch("r", window_s=60)
    (series,) = series_by_replica(text).values()
    (noise,) = series_by_replica(metrics(running=1, queued=9000, usage=0.2, retracted=5)).values()
    for second in range(0, 600, 5):
        sliding.take(second, noise)
    for second in range(0, 65, 5):
        sliding.take(1000.0 + second, series)
        whole.take(second, series)
    assert judge(sliding.observation(Facts())) == judge(whole.observation(Facts()))


def test_a_window_holds_a_bounded_number_of_moments() -> None:
    watch = TuningWatch(None, None, None, CollectorRegistry(), interval_s=0.001, window_s=300)  # type: ignore[arg-type]
    assert watch._interval_s == 1.0
