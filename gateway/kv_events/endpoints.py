"""Where a worker's streams and its tokenizer are: as it tells in /server_info, or as flags say where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from common.kv_events import KvEventsConfig


class Endpoints(msgspec.Struct, frozen=True):
    """ZMQ endpoints to connect to. Empty: there is none. `shared_tokens`: as in ExactIndex.begin."""

    events: str
    replay: str = ""
    load: str = ""
    topic: str = ""
    block_size: int = 0  # tokens; 0: not known
    shared_tokens: int = 0


class TokenizerSource(msgspec.Struct, frozen=True):
    """Where a model's tokenizer is, and its chat template unless the model's own. `variables`: JSON of the template's
    defaults."""

    path: str
    chat_template: str | None = None
    template_name: str | None = None
    variables: str = ""


def told_tokenizer(info: Mapping[str, Any]) -> TokenizerSource | None:
    """From /server_info. It is of use where the directory exists on this machine, too."""
    path = next((info[name] for name in ("tokenizer_dir", "tokenizer_path", "model_path") if info.get(name)), None)
    if not isinstance(path, str) or info.get("skip_tokenizer_init"):
        return None
    variables = info.get("default_chat_template_kwargs")
    return TokenizerSource(
        path,
        _text(info.get("chat_template")),
        _text(info.get("hf_chat_template_name")),
        orjson.dumps(variables).decode() if isinstance(variables, dict) and variables else "",
    )


def told_endpoints(
    url: str, config: object, page_size: object = None, shared_tokens: object = None
) -> Endpoints | None:
    """From the `kv_events_config` that the worker at `url` tells, as an object or its JSON; None if there are none.

    Blocks are of one page if it does not say more. Only ports are taken from it, the host is the worker's: what one
    worker says must not make us call others. Without a publisher of events it may push its load all the same.
    """
    try:
        fields = orjson.loads(config) if isinstance(config, str) else config
        if not isinstance(fields, dict):
            return None
        told = KvEventsConfig.of({name: fields[name] for name in KvEventsConfig.__struct_fields__ if name in fields})
    except ValueError:
        return None
    host = urlsplit(url).hostname or ""
    load = _at(host, told.load_endpoint)
    if fields.get("publisher", "null") != "zmq":
        return Endpoints("", load=load) if load else None
    events = _at(host, told.endpoint or "tcp://*:5557")
    if not events:
        return None
    size = told.block_size or (page_size if isinstance(page_size, int) else 0)
    shared = shared_tokens if isinstance(shared_tokens, int) else 0
    return Endpoints(events, _at(host, told.replay_endpoint), load, told.topic, max(size, 0), max(shared, 0))


def given_endpoints(settings: Sequence[str]) -> dict[str, Endpoints]:
    """From URL=EVENTS[,REPLAY[,LOAD]] each; what a worker does not have may be empty. Raises ValueError."""
    found = {}
    for text in settings:
        url, equals, addresses = text.partition("=")
        parts = addresses.split(",")
        sound = all(part.startswith(("tcp://", "ipc://")) for part in parts if part)
        if not equals or not 1 <= len(parts) <= 3 or not any(parts) or not sound:
            raise ValueError(f"{text!r} is not URL=EVENTS[,REPLAY[,LOAD]] with endpoints like tcp://host:5557")
        events, replay, load = [*parts, "", ""][:3]
        found[url.rstrip("/")] = Endpoints(events, replay, load)
    return found


def _at(host: str, endpoint: Any) -> str:
    """The endpoint's port at this host; empty if it has none."""
    if not isinstance(endpoint, str) or not endpoint.startswith("tcp://"):
        return ""
    port = endpoint.rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
