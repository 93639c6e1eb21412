"""How right routing is about caches: predicted against actual cached tokens of each answer, in both routing modes.

    python -m benchmarks.prediction --model-path MODEL

starts replicas on the simulated device and a gateway, sends conversations that share beginnings, and compares the
`cached` of each x-canopy-route header with the `cached_tokens` that the replica reports. A prediction is right within
--block-tokens; errors are shares of prompts, above 0 where less was cached than predicted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.arguments import Arguments, run
from benchmarks.prediction_outcomes import HEADER, Outcome, table
from common.process import die_with_parent

MODES = ("approximate", "exact")
_START_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 30.0
_START_CHARS = 1000  # of a first message: those that share so much share the whole long text
_WORDS = (
    "river",
    "stone",
    "cloud",
    "lamp",
    "table",
    "green",
    "seven",
    "walk",
    "number",
    "letter",
    "engine",
    "winter",
)  # of one token or so


def conversations(count: int, turns: int, seed: int) -> list[list[str]]:
    """User messages of each conversation; the first of each begins with one of four long texts."""
    rng = random.Random(seed)
    shared = [_text(rng, 300) for _ in range(4)]
    return [
        [f"{rng.choice(shared)} {_text(rng, 30)}", *(_text(rng, rng.randrange(10, 80)) for _ in range(turns - 1))]
        for _ in range(count)
    ]


async def converse(url: str, talks: list[list[str]], concurrency: int, think_s: float = 0.0) -> list[Outcome]:
    """Hold all conversations, so many at a time, and see what was predicted and what was true. `think_s`: between two
    turns."""
    outcomes: list[Outcome] = []
    starts: dict[str, int] = {}
    waiting = iter(talks)

    async def hold() -> None:
        async with aiohttp.ClientSession() as session:
            for talk in waiting:
                start = starts.setdefault(talk[0][:_START_CHARS], len(starts))
                messages: list[dict[str, str]] = []
                for turn, text in enumerate(talk, start=1):
                    await asyncio.sleep(think_s)
                    messages.append({"role": "user", "content": text})
                    outcome, answer = await _ask(session, url, messages)
                    outcomes.append(replace(outcome, turn=turn, start=start))
                    messages.append({"role": "assistant", "content": answer})

    await asyncio.gather(*(hold() for _ in range(concurrency)))
    return outcomes


@contextmanager
def fleet(
    model_path: str, mode: str, replicas: int, *worker_flags: str, health_interval_s: float = 0.5
) -> Iterator[str]:
    """Simulated replicas behind a gateway of ours, as processes. Yields the gateway's URL."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        flags = ["--model-path", model_path, "--device", "sim", "--port", "0", *worker_flags]
        if mode == "exact":
            flags += ["--kv-events-config", "{}"]
        files = [folder / f"ready{n}.json" for n in range(replicas)]
        for file in files:
            stack.enter_context(_process("worker", *flags, "--ready-file", str(file)))
        urls = [_wait_for(file)["url"] for file in files]
        ports = folder / "gateway.log"
        with ports.open("wb") as log:
            interval = ["--health-interval-s", str(health_interval_s)]
            gateway = ["--worker-urls", *urls, "--port", "0", "--routing-mode", mode, *interval]
            stack.enter_context(_process("gateway", *gateway, log=log))
        yield _gateway_url(ports)


async def settled(url: str, mode: str, replicas: int) -> None:
    """Wait until all replicas serve and, in exact mode, until their caches and the tokenizer are known."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    async with aiohttp.ClientSession() as session:
        while True:
            metrics = await _get(session, f"{url}/metrics")
            wanted = [f'canopy_gateway_workers{{state="ready"}} {replicas}\n']
            if mode == "exact":
                wanted += [f"canopy_gateway_exact_workers {replicas}\n"]
            if all(line in metrics for line in wanted) and (mode != "exact" or await _knows_tokens(session, url)):
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the fleet is not ready in {mode} mode")
            await asyncio.sleep(0.2)


async def measure(model_path: str, mode: str, args: argparse.Namespace) -> list[Outcome]:
    """One mode."""
    flags = ["--max-total-tokens", str(args.max_total_tokens)] if args.max_total_tokens else []
    with fleet(model_path, mode, args.replicas, *flags) as url:
        await settled(url, mode, args.replicas)
        talks = conversations(args.conversations, args.turns, args.seed)
        return await converse(url, talks, args.concurrency, args.think_s)


def main() -> int:
    """Print a table for each mode."""
    parser = Arguments(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("--model-path", required=True, help="model whose tokenizer and chat template are used")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--think-s", type=float, default=0.0, help="seconds between two turns of a conversation")
    parser.add_argument("--max-total-tokens", type=int, default=0, help="of each replica's cache; 0 = its device's")
    parser.add_argument("--block-tokens", type=int, default=16, help="what counts as right")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=Path, help="file for each answer's figures, as JSON lines")
    args = parser.parse_args()
    print(HEADER)
    records = []
    for mode in MODES:
        outcomes = asyncio.run(measure(args.model_path, mode, args))
        records += [orjson.dumps({"mode": mode, **asdict(one)}) for one in outcomes]
        print(*table(mode, outcomes, args.block_tokens), sep="\n", flush=True)
    if args.records is not None:
        args.records.write_bytes(b"\n".join(records) + b"\n")
    return 0


def _text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(num_words))


async def _ask(session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]]) -> tuple[Outcome, str]:
    body = {"messages": messages, "max_tokens": 16, "stream": True, "stream_options": {"include_usage": True}}
    sent_s = time.monotonic()
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        head_s = time.monotonic()
        text = await response.text()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {text}")
        parts = dict(part.split("=", 1) for part in response.headers["x-canopy-route"].split("; "))
    events = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    answer = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    usage = events[-1]["usage"]
    actual = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    outcome = Outcome(
        usage["prompt_tokens"], int(parts["cached"]), actual, worker=parts["worker"], sent_s=sent_s, head_s=head_s
    )
    return outcome, answer


async def _knows_tokens(session: aiohttp.ClientSession, url: str) -> bool:
    """A prompt can be turned into tokens."""
    body = {"messages": [{"role": "user", "content": "x"}]}
    async with session.post(f"{url}/route/explain", json=body) as response:
        return bool(orjson.loads(await response.read())["prompt"]["tokens"])


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


@contextmanager
def _process(module: str, *flags: str, log: Any = subprocess.DEVNULL) -> Iterator[None]:
    """A program of ours, ended afterwards, and killed when we are."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *flags],
        stdout=log,
        stderr=log,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(file: Path) -> dict[str, Any]:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{file.name}: a replica did not start")
        time.sleep(0.1)
    return dict(orjson.loads(file.read_bytes()))


def _gateway_url(log: Path) -> str:
    """From its first log lines."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        for line in log.read_text().splitlines():
            if "listening on " in line:
                return line.split("listening on ", 1)[1].split(",")[0]
        time.sleep(0.1)
    raise TimeoutError("the gateway did not start")


if __name__ == "__main__":
    run(main)
