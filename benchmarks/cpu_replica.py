"""Concurrent chats on one CPU replica, beside `transformers serve --continuous-batching`, in one run.

    python -m benchmarks.cpu_replica MODEL_DIR [--chats 8] [--max-tokens 64] [--rounds 3]

Each server runs alone, on the same prompts, all cores, greedy; the rounds of the two alternate. Prints generated tokens
a second per round and the ratio of the medians. The peer needs the package accelerate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

START_TIMEOUT_S = 120.0
TOPICS = ("rivers", "bridges", "bread", "clocks", "whales", "maps", "glass", "tea", "trains", "bees", "salt", "ink")


def main() -> int:
    args = parse_args()
    model = str(Path(args.model_dir).resolve())
    rates: dict[str, list[float]] = {"canopy": [], "transformers": []}
    for round_number in range(args.rounds):
        for name in rates:
            with server(name, model) as url:
                asyncio.run(chats(url, model, 2, 8))  # warm-up: first compile, first allocation
                rate = asyncio.run(chats(url, model, args.chats, args.max_tokens))
            rates[name].append(rate)
            print(f"round {round_number + 1}: {name:13s} {rate:7.1f} tok/s", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{args.chats} chats x {args.max_tokens} tokens, medians: ", end="")
    print(", ".join(f"{name} {value:.1f} tok/s" for name, value in medians.items()), end="; ")
    print(f"ratio {medians['canopy'] / medians['transformers']:.2f}")
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model_dir", help="directory with config.json, tokenizer and safetensors")
    parser.add_argument("--chats", type=int, default=8, help="concurrent chats (default 8)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer (default 64)")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    return parser.parse_args()


def command(name: str, model: str, port: int) -> list[str]:
    if name == "canopy":
        return [sys.executable, "-m", "worker", "--model-path", model, "--served-model-name", "m", "--port", str(port)]
    transformers = str(Path(sys.executable).with_name("transformers"))
    return [transformers, "serve", model, "--continuous-batching", "--port", str(port), "--dtype", "float32"]


@contextlib.contextmanager
def server(name: str, model: str) -> Iterator[str]:
    """Run one server until the block ends; yields its address once it answers /health."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(command(name, model, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"{name} did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def chats(url: str, model: str, count: int, max_tokens: int) -> float:
    """Send `count` chats at once; generated tokens a second over the whole."""
    async with httpx.AsyncClient(timeout=600) as client:
        names = [item["id"] for item in (await client.get(f"{url}/v1/models")).json()["data"]]
        name = model if model in names else names[0]
        start_s = time.perf_counter()
        tokens = await asyncio.gather(*(chat(client, url, name, i, max_tokens) for i in range(count)))
        return sum(tokens) / (time.perf_counter() - start_s)


async def chat(client: httpx.AsyncClient, url: str, model: str, index: int, max_tokens: int) -> int:
    topic = TOPICS[index % len(TOPICS)]
    question = f"Write a long story, number {index}, about {topic} and the people who love them."
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    response = await client.post(f"{url}/v1/chat/completions", json=body)
    response.raise_for_status()
    return int(response.json()["usage"]["completion_tokens"])


if __name__ == "__main__":
    sys.exit(main())
