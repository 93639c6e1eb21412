"""Tokenizers are loaded once, beside everything else, and nobody waits for a load that is not wanted any more."""

from __future__ import annotations

import subprocess
import sys

from common.errors import UserError
from gateway.kv_events.endpoints import TokenizerSource
from gateway.kv_events.tokenizers import PromptEncoder, Tokenizers

SOURCE = TokenizerSource("/model")
LEAVES = """
import asyncio, threading, time
from gateway.kv_events.endpoints import TokenizerSource
from gateway.kv_events.tokenizers import Tokenizers

begun = threading.Event()

def load(source, cache_bytes):
    begun.set()
    time.sleep(3600)

async def main():
    tokenizers = Tokenizers(1000, load)
    tokenizers.want(TokenizerSource("/model"))
    await asyncio.to_thread(begun.wait)
    tokenizers.close()

asyncio.run(main())
print("left")
"""


async def test_a_tokenizer_that_cannot_be_loaded_is_tried_once() -> None:
    loads = []

    def load(source: TokenizerSource, cache_bytes: int) -> PromptEncoder:
        loads.append((source, cache_bytes))
        raise UserError("There is none.")

    tokenizers = Tokenizers(1000, load)
    for _ in range(2):
        tokenizers.want(SOURCE)
        await tokenizers.loaded()
    assert loads == [(SOURCE, 1000)]
    assert tokenizers.get(SOURCE) is None
    tokenizers.close()


def test_a_process_that_ends_does_not_wait_for_a_load() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("left\n", "")
