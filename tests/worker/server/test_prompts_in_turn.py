"""Prompts leave the tokenizer's threads in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from threading import Event

import pytest

from worker.server.tokenizer import AsyncTokenizer, NoTokenizer

DEADLINE_S = 10.0


class Turns:
    """Prompts under way, and the order in which they left."""

    def __init__(self) -> None:
        self.tokenizer = AsyncTokenizer(NoTokenizer())
        self.left: list[str] = []

    def come(self, name: str, num_chars: int = 100, work: Callable[[], object] = lambda: None) -> asyncio.Task[None]:
        return asyncio.create_task(self._pass(name, num_chars, work))

    async def _pass(self, name: str, num_chars: int, work: Callable[[], object]) -> None:
        await self.tokenizer.run_in_turn(work, num_chars)
        self.left.append(name)


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    turns = Turns()
    yield turns
    turns.tokenizer.close()


async def test_a_quick_prompt_does_not_overtake_the_one_before(turns: Turns) -> None:
    release, done = Event(), Event()
    first = turns.come("first", work=lambda: release.wait(DEADLINE_S))
    await asyncio.sleep(0)
    rest = [turns.come("second", work=done.set), turns.come("third", num_chars=50_000)]
    await asyncio.to_thread(done.wait, DEADLINE_S)
    assert turns.left == []
    release.set()
    await asyncio.gather(first, *rest)
    assert turns.left == ["first", "second", "third"]


@pytest.mark.parametrize(("own", "waits"), [(100, False), (20_000, False), (40_000, True)])
async def test_only_a_prompt_at_least_half_as_long_waits_for_a_long_one(turns: Turns, own: int, waits: bool) -> None:
    release = Event()
    long = turns.come("long", num_chars=60_000, work=lambda: release.wait(DEADLINE_S))
    await asyncio.sleep(0)
    other = turns.come("other", num_chars=own)
    if not waits:
        await asyncio.wait_for(other, DEADLINE_S)
    release.set()
    await asyncio.gather(long, other)
    assert turns.left == (["long", "other"] if waits else ["other", "long"])


async def test_prompts_that_fail_or_whose_client_leaves_hold_up_nobody(turns: Turns) -> None:
    release = Event()

    def fail() -> None:
        release.wait(DEADLINE_S)
        raise ValueError

    faulty = turns.come("faulty", work=fail)
    await asyncio.sleep(0)
    gone, last = turns.come("gone"), turns.come("last")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    release.set()
    with pytest.raises(ValueError):
        await faulty
    await asyncio.wait_for(last, DEADLINE_S)
    assert turns.left == ["last"]
    assert not turns.tokenizer._under_way
