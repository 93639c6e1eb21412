"""Finds the true prompt and cached token counts in an answer, without parsing it."""

from __future__ import annotations

import re

# A quote inside a JSON string is escaped, so generated text cannot imitate these keys.
CACHED_KEY = b'"cached_tokens"'
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')


def find_usage(payload: bytes) -> tuple[int, int] | None:
    """(prompt_tokens, cached_tokens) if `payload` tells both: OpenAI's usage, or meta_info of /generate."""
    if payload.find(CACHED_KEY) < 0:  # `in` would raise and catch a TypeError within
        return None
    cached, prompt = _CACHED.search(payload), _PROMPT.search(payload)
    if cached is None or prompt is None:
        return None
    return int(prompt[1]), int(cached[1])
