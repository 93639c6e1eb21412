"""Live sequences: whose news is whose, when clients choose the ids."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tests.helpers.clock import FakeClock
from worker.config import WorkerSettings
from worker.ipc.messages import AbortRequest, FrontendMessage, GenerateRequest, StepOutput, TokenDelta
from worker.sampling_params import SamplingParams
from worker.server.errors import RequestFault
from worker.server.metrics import RequestMetrics
from worker.server.request_log import request_log
from worker.server.served_weights import ServedWeights
from worker.server.streams import Streams
from worker.server.tokenizer import Tokenizer


@pytest.fixture
def sent() -> list[FrontendMessage]:
    return []


@pytest.fixture
def streams(tokenizer: Tokenizer, sent: list[FrontendMessage]) -> Streams:
    log = request_log(WorkerSettings(model_path="m"), tokenizer)
    metrics, weights = RequestMetrics(CollectorRegistry(), "m"), ServedWeights("m", "v")
    return Streams(sent.append, tokenizer, metrics, log, FakeClock(), 1, weights)


def request(rid: str) -> GenerateRequest:
    return GenerateRequest(rid=rid, input_ids=[1, 2], sampling=SamplingParams())


def news(message: FrontendMessage, token_id: int) -> StepOutput:
    assert isinstance(message, GenerateRequest)
    delta = TokenDelta(rid=message.rid, token_ids=[token_id], prompt_tokens=2, cached_tokens=0, completion_tokens=1)
    return StepOutput(deltas=[delta])


async def test_late_news_of_an_aborted_request_are_not_those_of_a_new_one_with_its_id(
    streams: Streams, sent: list[FrontendMessage]
) -> None:
    streams.start("mine", [request("mine")], stream=True)
    streams.abort("mine")
    second = streams.start("mine", [request("mine")], stream=True)
    first_request, abort, second_request = sent
    assert isinstance(abort, AbortRequest) and isinstance(first_request, GenerateRequest)
    assert abort.rid == first_request.rid

    streams.deliver(news(first_request, 5))
    assert second.answers[0].output_ids == []
    streams.deliver(news(second_request, 6))
    assert second.answers[0].output_ids == [6]
    assert second.answers[0].id == "mine"


async def test_an_id_is_taken_only_while_its_request_lives(streams: Streams) -> None:
    streams.start("group", [request("a"), request("b")], stream=False)
    for taken in ("group", "a", "b"):
        with pytest.raises(RequestFault, match="in use"):
            streams.start(taken, [request(taken)], stream=False)
    streams.abort("group")
    assert streams.num_live == 0
    streams.start("a", [request("a")], stream=False)
    assert streams.num_live == 1
