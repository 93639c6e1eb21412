"""Finds the true prompt and cached token counts in an answer, without parsing it."""

from __future__ import annotations

import re

# A quote inside a JSON string is escaped, so generated text cannot imitate these keys.
CACHED_KEY = b'"cached_tokens"'
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')
_COMPLETION = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})')


def find_usage(payload: bytes) -> tuple[int, int, int] | None:
    """(prompt_tokens, cached_tokens, completion_tokens) if `payload` tells the first two, the last 0 if it does not.

    Understood are OpenAI's usage and the meta_info of /generate.
    """
    if payload.find(CACHED_KEY) < 0:  # `in` would raise and catch a TypeError within
        return None
    cached, prompt = _CACHED.search(payload), _PROMPT.search(payload)
    if cached is None or prompt is None:
        return None
    completion = _COMPLETION.search(payload)
    return int(prompt[1]), int(cached[1]), int(completion[1]) if completion is not None else 0
