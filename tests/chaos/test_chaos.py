"""Replicas are killed, hung, slowed, restarted, and answer nonsense, while requests flow.

Every request must end within its deadline with the right answer or one clear error, and what the gateway counted must
be what happened. `make test-chaos` runs it for three minutes; the short version belongs to every run of the tests.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.chaos.clients import Tally, ask_for
from tests.chaos.fleet import Fleet, Worker, running_fleet, until_all_ready, until_idle
from tests.helpers.chaos_worker import MODES
from tests.helpers.fake_worker import MODEL
from tests.helpers.gateway_harness import CHAT, chat_body, request_bytes

WORKERS = 5
PER_SECOND = 50.0
HELD = 40  # streams that are held open for the comparison of ledgers
TROUBLES = ("killed", "hung", *MODES[1:])


async def trouble(worker: Worker, kind: str, seconds: float) -> None:
    """Something happens to a worker, and it recovers."""
    if kind == "killed":
        await worker.kill()
        await asyncio.sleep(seconds)
        await worker.start()
    elif kind == "hung":
        worker.stop()
        await asyncio.sleep(seconds)
        worker.go_on()
    else:
        await worker.set(kind)
        await asyncio.sleep(seconds)
        await worker.set("well")


async def make_trouble(fleet: Fleet, over: asyncio.Event, rng: random.Random) -> Counter[str]:
    """All but the first worker, each by itself, have one trouble after the other."""
    happened: Counter[str] = Counter()

    async def haunt(worker: Worker, first: int) -> None:
        kinds = list(TROUBLES)
        rng.shuffle(kinds)
        while not over.is_set():
            kind = kinds[(first + happened.total()) % len(kinds)]
            happened[kind] += 1
            await trouble(worker, kind, rng.uniform(0.5, 6))
            await asyncio.sleep(rng.uniform(0.2, 2))

    async with asyncio.TaskGroup() as tasks:
        for index, worker in enumerate(fleet.workers[1:]):
            tasks.create_task(haunt(worker, index))
    return happened


def check_answers(tally: Tally, samples: dict[str, float], least_right: float) -> None:
    """Nothing wrong, enough right, and the gateway's counters are the clients' tally."""
    assert not tally.wrong, tally.wrong[:5]
    assert tally.right / tally.answered >= least_right
    counted = Counter(
        {
            int(name.split('status="')[1][:3]): int(value)
            for name, value in samples.items()
            if name.startswith("requests_total")
        }
    )
    assert counted.total() == tally.asked
    # Some of those that left were answered before the gateway saw them go.
    assert counted[499] <= tally.left
    differences = {status: counted[status] - tally.statuses[status] for status in counted if status != 499}
    assert all(difference >= 0 for difference in differences.values()), differences
    assert differences.get(502, 0) + differences.get(504, 0) >= tally.cut
    assert sum(differences.values()) + counted[499] == tally.left + tally.cut


async def check_ledgers(fleet: Fleet) -> None:
    """While streams are held open, and after them, the gateway counts what each worker counts."""
    for worker in fleet.workers:
        await worker.set("well", hold=True)
    streams = [asyncio.create_task(one_stream(fleet.port, f"held {number}")) for number in range(HELD)]
    async with asyncio.timeout(20):
        while sum([await worker.active() for worker in fleet.workers]) < HELD:
            await asyncio.sleep(0.05)
    listed = await fleet.listed()
    assert [worker["in_flight"] for worker in listed] == [await worker.active() for worker in fleet.workers]
    for worker in fleet.workers:
        await worker.set("well")
    assert all(body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for body in await asyncio.gather(*streams))
    await until_idle(fleet, 10)
    for seen in await fleet.listed():
        assert (seen["in_flight"], seen["pending_prefill_tokens"], seen["state"]) == (0, 0, "ready")
    assert [await worker.active() for worker in fleet.workers] == [0] * WORKERS


async def one_stream(port: int, question: str) -> bytes:
    """The raw answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(chat_body(question, stream=True, model=MODEL), CHAT, "connection: close"))
    answer = await reader.read()
    writer.close()
    return answer


def summary(seconds: float, happened: Counter[str], tally: Tally, samples: dict[str, float]) -> str:
    """What happened, for those who run it with -s."""
    retries = {name: int(value) for name, value in samples.items() if name.startswith("retries_total")}
    return (
        f"\n{seconds:g} s, troubles {dict(happened)}: {tally.asked} asked, {tally.left} left, {tally.right} right, "
        f"statuses {dict(tally.statuses)}, {tally.cut} cut, worst {tally.worst_s:.2f} s, {retries}"
    )


async def chaos(seconds: float, seed: int, least_right: float, *flags: str) -> None:
    """One run."""
    rng = random.Random(seed)
    async with running_fleet(WORKERS, *flags) as fleet:
        over = asyncio.Event()
        troubles = asyncio.create_task(make_trouble(fleet, over, rng))
        tally = await ask_for(fleet.port, seconds, PER_SECOND, random.Random(seed))
        over.set()
        happened = await troubles
        await until_all_ready(fleet)
        await until_idle(fleet, 10)
        samples = await fleet.samples()
        print(summary(seconds, happened, tally, samples))
        check_answers(tally, samples, least_right)
        await check_ledgers(fleet)


async def test_a_moment_of_chaos() -> None:
    await chaos(12, 1, 0.7)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("flags", "least_right"), [((), 0.7), (("--resume-streams",), 0.7)])
async def test_three_minutes_of_chaos(flags: tuple[str, ...], least_right: float) -> None:
    await chaos(180, 2, least_right, *flags)
