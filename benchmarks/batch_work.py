"""A batch file of mixed requests for benchmarks/batch_sweep.py: three kinds, many beginnings shared, in no order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

GROUP = 20  # requests that begin alike
ANSWER_TOKENS = (20, 200)
_OPEN_TOKENS = 256  # limit of answers that end by themselves
_SHARED_WORDS, _OWN_WORDS = (150, 250), (50, 150)  # of one token or so
_WORDS = (
    *("the", "of", "and", "to", "in", "that", "is", "was", "for", "with", "as", "on", "by", "at", "from", "this"),
    *("river", "stone", "cloud", "table", "green", "seven", "number", "letter", "engine", "winter", "garden", "music"),
    *("house", "water", "people", "school", "system", "story", "light", "paper", "market", "station", "office", "road"),
)
_URLS = ("/v1/chat/completions", "/v1/completions", "/generate")


def write_work(path: Path, count: int, seed: int) -> None:
    """`count` requests from a seed. Half of the answers have a fixed length, the others end by themselves."""
    rng = random.Random(seed)
    requests = list(_requests(rng, count))
    rng.shuffle(requests)
    path.write_bytes(b"".join(orjson.dumps(request) + b"\n" for request in requests))


def _requests(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    shared, url = "", ""
    for number in range(count):
        if number % GROUP == 0:
            shared, url = _words(rng, _SHARED_WORDS), rng.choice(_URLS)
        prompt = f"{shared} {_words(rng, _OWN_WORDS)}"
        fixed = rng.randint(*ANSWER_TOKENS) if rng.random() < 0.5 else None
        yield {"custom_id": f"r{number}", "method": "POST", "url": url, "body": _body(url, prompt, fixed)}


def _body(url: str, prompt: str, fixed: int | None) -> dict[str, Any]:
    most, whole = fixed or _OPEN_TOKENS, fixed is not None
    if url == "/generate":
        return {"text": prompt, "sampling_params": {"max_new_tokens": most, "ignore_eos": whole}}
    asked = {"messages": [{"role": "user", "content": prompt}]} if "chat" in url else {"prompt": prompt}
    return {"model": "demo", "max_tokens": most, "ignore_eos": whole, **asked}


def _words(rng: random.Random, bounds: tuple[int, int]) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(*bounds)))
