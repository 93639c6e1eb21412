"""The endpoints beside generation: health, model and server facts, load, cache, aborts, tokens, metrics."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
from fastapi import Request, Response

from common.exposition import CONTENT_TYPE, render
from common.settings import public_values
from worker.ipc.messages import LoadReport
from worker.sampling_params import SamplingParams
from worker.server.chat_messages import template_messages
from worker.server.errors import RequestFault
from worker.server.http import JsonAnswer, read_body
from worker.server.prompts import Ask, encode_chat, new_id, start
from worker.server.replies import whole_reply
from worker.server.sampling import check_token_ids
from worker.server.schemas import AbortBody, DetokenizeBody, PauseBody, TokenizeBody
from worker.server.service import Service

HEALTH_PREFIX = "HEALTH_CHECK_"
HEALTH_DEADLINE_S = 20.0
MAX_HOT_TOKENS = 10_000_000
_HOT_TOKENS = 32_768
_VERSION = version("canopy-serve")


async def health(service: Service, _: Request) -> Response:
    """200 while requests are taken, else 503."""
    service.lifecycle.check_admits()
    return Response()


async def health_generate(service: Service, request: Request) -> Response:
    """200 if one token is really generated within 20 s."""
    serving = service.admit()
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    ask = Ask([0], sampling, "")
    generation = start(serving, [ask], group_id=new_id(HEALTH_PREFIX), stream=False)
    serving.streams.expire_after(HEALTH_DEADLINE_S, generation, "No token was generated within 20 s.")
    await whole_reply(request, generation)
    return Response()


async def model_info(service: Service, _: Request) -> Response:
    """What model this is."""
    ready = service.serving.ready
    settings = service.settings
    return JsonAnswer(
        {
            "model_path": service.weights.model_path,
            "tokenizer_path": settings.tokenizer_path or settings.model_path,
            "served_model_name": settings.model_name,
            "is_generation": not ready.embedding_size,
            "embedding_size": ready.embedding_size or None,
            "preferred_sampling_params": settings.preferred_sampling_params,
            "weight_version": service.weights.version,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "architectures": ready.architectures,
            "max_model_len": ready.context_len,
            "incarnation": service.incarnation,
        }
    )


async def server_info(service: Service, _: Request) -> Response:
    """Every setting, flat; what the scheduler said when it was ready; its load now."""
    load = await service.scheduler.load()
    internal = {
        "last_gen_throughput": load.gen_throughput,
        "new_token_ratio": load.new_token_ratio,
        **_queue_fields(load),
    }
    ready = msgspec.structs.asdict(service.serving.ready)
    own = {"incarnation": service.incarnation, "version": _VERSION, "status": service.lifecycle.state.value}
    weights = {"model_path": service.weights.model_path, "weight_version": service.weights.version}
    named = {"served_model_name": service.settings.model_name, **weights}
    streams = msgspec.structs.asdict(service.kv_events) if service.kv_events is not None else None
    told = {"kv_events_config": streams, "tokenizer_dir": service.tokenizer_dir}
    return JsonAnswer(public_values(service.settings) | ready | named | own | told | {"internal_states": [internal]})


async def models(service: Service, _: Request) -> Response:
    """OpenAI's list; it has one model."""
    return JsonAnswer({"object": "list", "data": [_model_card(service)]})


async def model(service: Service, request: Request) -> Response:
    """OpenAI's model object. Raises RequestFault (404) for another model."""
    service.check_model(request.path_params["name"])
    return JsonAnswer(_model_card(service))


def _model_card(service: Service) -> dict[str, Any]:
    ready = service.serving.ready
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "canopy",
        "root": service.weights.model_path,
        "parent": None,
        "max_model_len": ready.context_len,
        "task": "embed" if ready.embedding_size else "generate",
    }


async def loads(service: Service, _: Request) -> Response:
    """The load report in SGLang's shape: one entry, of data-parallel rank 0."""
    return JsonAnswer(await load_report(service))


async def load_report(service: Service) -> dict[str, Any]:
    """What /v1/loads answers, and what is pushed to those who follow this replica."""
    ready, load = service.serving.ready, await service.scheduler.load()
    gib = 2**30
    entry = {
        "dp_rank": 0,
        **_queue_fields(load),
        "num_used_tokens": load.num_used_tokens,
        "num_evictable_tokens": load.num_evictable_tokens,
        "num_free_tokens": load.num_free_tokens,
        "num_waiting_tokens": load.num_waiting_tokens,
        "max_total_num_tokens": load.max_total_num_tokens,
        "max_running_requests": load.max_running_requests,
        "token_usage": load.token_usage,
        "utilization": load.num_running_reqs / load.max_running_requests,
        "gen_throughput": load.gen_throughput,
        "cache_hit_rate": load.cache_hit_rate,
        "new_token_ratio": load.new_token_ratio,
        "totals": {name: value for name, value in msgspec.structs.asdict(load).items() if name.endswith("_total")},
        "memory": {
            "weight_gb": ready.weight_bytes / gib,
            "kv_cache_gb": ready.kv_pool_bytes / gib,
            "token_capacity": load.max_total_num_tokens,
        },
        "queues": {"waiting": load.num_waiting_reqs, "retracted": 0},
    }
    return {
        "timestamp": time.time(),
        "version": _VERSION,
        "accelerator": ready.device,
        "incarnation": service.incarnation,
        "ttft": service.ttft(),
        "loads": [entry],
    }


def _queue_fields(load: LoadReport) -> dict[str, int]:
    return {"num_running_reqs": load.num_running_reqs, "num_waiting_reqs": load.num_waiting_reqs}


async def flush_cache(service: Service, _: Request) -> Response:
    """Empty the prefix cache; 400 while requests run or wait."""
    service.admit()
    reply = await service.scheduler.flush_cache()
    if not reply.ok:
        raise RequestFault(400, reply.message)
    return Response("The prefix cache is empty.\n", media_type="text/plain")


async def hot_prefixes(service: Service, request: Request) -> Response:
    """The prefixes of this cache that are asked for most, as token ids, the hottest first: at most `max_tokens`
    different tokens together. A new replica generates from them before it gets traffic, so an embedding model tells
    none. Those with a cache salt stay here."""
    asked = request.query_params.get("max_tokens", str(_HOT_TOKENS))
    if not asked.isdecimal() or not 0 < len(asked) <= len(str(MAX_HOT_TOKENS)) or int(asked) > MAX_HOT_TOKENS:
        raise RequestFault(400, f"max_tokens must be a number up to {MAX_HOT_TOKENS}.", param="max_tokens")
    if service.admit().ready.embedding_size:
        return JsonAnswer({"incarnation": service.incarnation, "prefixes": []})
    found = await service.scheduler.hot_prefixes(int(asked))
    prefixes = [{"input_ids": np.frombuffer(p.tokens, np.int32).tolist(), "hits": p.hits} for p in found]
    return JsonAnswer({"incarnation": service.incarnation, "prefixes": prefixes})


async def abort_request(service: Service, request: Request) -> Response:
    """End a request by its id, or all. Always 200: an unknown id has nothing to abort."""
    streams = service.serving.streams
    body = await read_body(request, AbortBody, service.settings.max_body_bytes)
    if body.abort_all:
        streams.abort_all(400, "The request was aborted.")
    elif body.rid is not None:
        streams.abort(body.rid)
    return Response()


async def pause_generation(service: Service, request: Request) -> Response:
    """Compute nothing until /continue_generation; new requests wait. Those under way end with an error (mode abort),
    keep their place (in_place), or give up their KV cache and compute it again later (retract)."""
    streams = service.serving.streams
    body = await read_body(request, PauseBody, service.settings.max_body_bytes, empty=PauseBody())
    if body.mode == "abort":
        streams.abort_all(503, "Generation was paused, and this request was aborted.")
    await service.scheduler.pause(retract=body.mode == "retract")
    return JsonAnswer({"status": "ok", "message": f"Generation is paused (mode {body.mode})."})


async def continue_generation(service: Service, _: Request) -> Response:
    """End a pause."""
    service.admit()
    await service.scheduler.go_on()
    return JsonAnswer({"status": "ok", "message": "Generation goes on."})


async def tokenize(service: Service, request: Request) -> Response:
    """Token ids of a text or a chat."""
    serving = service.admit()
    body = await read_body(request, TokenizeBody, service.settings.max_body_bytes)
    if (body.prompt is None) == (body.messages is None):
        raise RequestFault(400, "Give exactly one of prompt and messages.", param="prompt")
    if body.messages is not None:
        tokens = await encode_chat(serving, template_messages(body.messages, takes_tools=serving.takes_tools))
    else:
        text, specials = body.prompt or "", body.add_special_tokens is not False
        tokenizer = serving.tokenizer.tokenizer
        tokenizer.check_text("prompt")
        tokens = await serving.tokenizer.run(lambda: tokenizer.encode(text, add_special_tokens=specials))
    return JsonAnswer({"tokens": tokens, "count": len(tokens), "max_model_len": serving.ready.context_len})


async def detokenize(service: Service, request: Request) -> Response:
    """The text of token ids."""
    serving = service.admit()
    body = await read_body(request, DetokenizeBody, service.settings.max_body_bytes)
    check_token_ids(body.tokens, serving.ready.vocab_size, "tokens")
    tokenizer, skip = serving.tokenizer.tokenizer, body.skip_special_tokens is not False
    tokenizer.check_text("tokens")
    text = await serving.tokenizer.run(lambda: tokenizer.decode(body.tokens, skip_special_tokens=skip))
    return JsonAnswer({"text": text})


async def metrics(service: Service, _: Request) -> Response:
    """Prometheus text. While the model loads it has the frontend's series only."""
    if service.lifecycle.state.has_scheduler:
        service.scheduler_metrics.report = await service.scheduler.load()
    return Response(render(service.registry), media_type=CONTENT_TYPE)
