"""A gateway and simulated replicas as processes, scraped by a real Prometheus, and clients that keep count."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from common.process import die_with_parent, free_port
from deploy.observe import Places, config_for
from tests.helpers.processes import wait_until

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
MODEL = "tiny-chat"
_DURATION = re.compile(r"(?<=\[)\d+[mh](?=\])|(?<=offset )\d+[mh]|(?<=for: )\d+[mh]")
_UNIT_S = {"m": 60, "h": 3600}


@contextlib.contextmanager
def gateway(urls: Sequence[str], folder: Path, *flags: str) -> Iterator[str]:
    """`python -m gateway` in front of workers, ready; its address."""
    port = free_port()
    command = [sys.executable, "-m", "gateway", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls]
    with (folder / "gateway.log").open("wb") as log:
        end = partial(die_with_parent, os.getpid())
        process = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=log, stderr=log, preexec_fn=end)
    address = f"127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, (folder / "gateway.log").read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://{address}/readiness", timeout=5, trust_env=False).json().get(
                "ready_workers"
            ) == len(urls)
        return False

    try:
        wait_until(ready, 60, "the gateway is ready")
        yield address
    finally:
        process.terminate()
        process.wait(20)


def observed(address: str, folder: Path, *, faster: int = 1) -> Path:
    """deploy/prometheus' configuration for this gateway, with a scrape and an evaluation a second. All durations in
    rules are divided by `faster`, so that a test need not take hours."""
    path = config_for(Places(address, "", ""), folder)
    text = re.sub(r"(scrape_interval|evaluation_interval|refresh_interval): \d+s", r"\1: 1s", path.read_text())
    path.write_text(text)
    for rules in (folder / "rules").iterdir():
        rules.write_text(_DURATION.sub(lambda found: _shorter(found[0], faster), rules.read_text()))
    return path


def _shorter(duration: str, faster: int) -> str:
    return f"{int(duration[:-1]) * _UNIT_S[duration[-1]] // faster}s"


@dataclass
class Truth:
    """What a client counted."""

    statuses: Counter[int] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cancelled: int = 0

    def take(self, usage: dict[str, object]) -> None:
        """Enter an answer's usage."""
        details = usage["prompt_tokens_details"]
        assert isinstance(details, dict)
        self.prompt_tokens += int(str(usage["prompt_tokens"]))
        self.completion_tokens += int(str(usage["completion_tokens"]))
        self.cached_tokens += int(details["cached_tokens"])


class Clients:
    """Sends chats, each over a connection of its own, so that all processes of the gateway get some."""

    def __init__(self, address: str) -> None:
        self.truth = Truth()
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=f"http://{address}", timeout=120, trust_env=False, limits=limits)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, text: str, *, tokens: int = 16, model: str = MODEL) -> int:
        """A chat that is answered whole. Its status."""
        answered = await self._client.post(CHAT, json=_body(text, tokens, model))
        self.truth.statuses[answered.status_code] += 1
        if answered.status_code == 200:
            self.truth.take(answered.json()["usage"])
        return answered.status_code

    async def malformed(self) -> None:
        """A request that is none."""
        answered = await self._client.post(CHAT, content=b"{")
        self.truth.statuses[answered.status_code] += 1

    async def stream(self, text: str, *, tokens: int = 16) -> None:
        """A streamed chat, read to its end."""
        body = _body(text, tokens, MODEL) | {"stream": True, "stream_options": {"include_usage": True}}
        async with self._client.stream("POST", CHAT, json=body) as answered:
            lines = [line async for line in answered.aiter_lines() if line.startswith("data: {")]
        self.truth.statuses[answered.status_code] += 1
        if answered.status_code == 200:
            self.truth.take(json.loads(lines[-1].removeprefix("data: "))["usage"])

    async def cancel(self, text: str) -> None:
        """A streamed chat that is left after its first events."""
        body = _body(text, 4000, MODEL) | {"stream": True}
        async with self._client.stream("POST", CHAT, json=body) as answered:
            lines = answered.aiter_lines()
            for _ in range(3):
                await anext(lines)
        self.truth.cancelled += 1

    async def load(self, texts: Iterator[str], *, tokens: int, clients: int, spread: int = 1) -> None:
        """Ask again and again, from many clients, half of them streaming, until cancelled. Answers have up to `spread`
        tokens fewer, so that they do not end together."""

        async def client(number: int) -> None:
            while True:
                try:
                    text = next(texts)
                    length = tokens - number % spread
                    await (self.stream(text, tokens=length) if number % 2 else self.ask(text, tokens=length))
                except httpx.HTTPError:  # replicas and gateways die here
                    await asyncio.sleep(0.5)

        await asyncio.gather(*map(client, range(clients)))


def _body(text: str, tokens: int, model: str) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
