"""The console in a real browser, before a real gateway and workers that look alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.browser import chromium
from tests.helpers.certificates import make_certificate
from tests.helpers.gateway_harness import RunningGateway, running_gateway
from tests.helpers.lively_fleet import WORDS, LivelyWorker, chats, lively_workers

pytestmark = pytest.mark.observe

SHOTS = os.environ.get("CANOPY_SCREENSHOTS")  # a directory: pictures of the console go there
DESKTOP, PHONE = (1440, 900), (390, 844)


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with chromium() as started:
        yield started


class Console:
    """One page, with everything it complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self._said(message))

    def _said(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true. (The page's own policy forbids Playwright's way to wait.)"""
        async with asyncio.timeout(60):
            while not await self.page.evaluate(expression):
                await asyncio.sleep(0.05)

    async def shot(self, name: str, *, full: bool = False) -> None:
        if SHOTS:
            await self.page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=full)


@contextlib.asynccontextmanager
async def open_console(
    browser: Any,
    gateway: RunningGateway,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "light",
    protocol: str = "http",
) -> AsyncIterator[Console]:
    viewport = {"width": size[0], "height": size[1]}
    context = await browser.new_context(viewport=viewport, color_scheme=scheme, ignore_https_errors=True)
    try:
        console = Console(await context.new_page())
        await console.page.goto(f"{protocol}://127.0.0.1:{gateway.port}/console")
        yield console
    finally:
        await context.close()


def tile(worker: LivelyWorker) -> str:
    return f'.tile[aria-label^="127.0.0.1:{worker.port},"]'


async def test_each_replica_is_shown_and_moves_with_load(browser: Any) -> None:
    async with (
        lively_workers(4) as workers,
        running_gateway(workers, policy="cache_aware") as gateway,
        open_console(browser, gateway) as console,
    ):
        await console.until("document.querySelectorAll('.tile').length === 4")
        for worker in workers:
            label = await console.page.get_attribute(tile(worker), "aria-label")
            assert "ready, 0 in flight" in label and f"hit rate {round(100 * worker.hit_rate)}%" in label
        await console.until("document.querySelector('.vital:nth-child(5) dd').textContent === '0'")
        async with chats(gateway.client, 12):
            await console.until("Number(document.querySelector('.vital:nth-child(5) dd').textContent) >= 8")
            await console.until("document.querySelectorAll('#feed tr').length >= 12")
            begun = "[...document.querySelectorAll('#feed .runs [data-label=TTFT]')]"
            await console.until(f"{begun}.some(cell => /^[0-9]/.test(cell.textContent))")
            await console.until("[...document.querySelectorAll('#feed .status')].some(s => s.textContent === '200')")
            await console.until("document.querySelector('#chart-ttft path.line-a').getAttribute('d')?.includes('L')")
            await console.until("document.querySelector('#chart-tokens path.area').getAttribute('d')?.includes('L')")
            await console.until("document.querySelector('#reasons').textContent.includes('prefix')")
            await asyncio.sleep(8 if SHOTS else 0)
            await console.shot("light")
            await console.page.click("#theme")
            assert await console.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 18, 16)"
            await console.shot("dark")
        await console.until("document.querySelector('.vital:nth-child(5) dd').textContent === '0'")
        assert not console.faults


async def test_a_chat_answer_streams_in(browser: Any) -> None:
    async with (
        lively_workers(1) as (worker,),
        running_gateway([worker]) as gateway,
        open_console(browser, gateway) as console,
    ):
        worker.word_s = 0.1
        await console.until("document.querySelector('#model').value === 'fake-model'")
        await console.page.fill("#prompt", "What is a <b>prefix</b> cache?")
        await console.page.press("#prompt", "Enter")
        await console.until("document.querySelector('.say.model')?.textContent.includes('prefix cache')")
        assert "need not" not in await console.page.inner_text(".say.model")  # it is still being written
        await console.until(f"document.querySelector('.say.model').textContent.includes('{' '.join(WORDS)}')")
        await console.until("document.querySelector('.meta').textContent.includes('22 tokens')")
        assert f"127.0.0.1:{worker.port} · round robin" in await console.page.inner_text(".meta")
        assert await console.page.query_selector(".say b") is None  # what people and models write is text
        assert worker.requests[0].json["messages"][0]["content"] == "What is a <b>prefix</b> cache?"
        assert not console.faults


async def test_a_long_answer_stays_in_its_bubble(browser: Any) -> None:
    async with (
        lively_workers(1) as (worker,),
        running_gateway([worker]) as gateway,
        open_console(browser, gateway) as console,
    ):
        worker.word_s = 0.001
        worker.words = WORDS * 20
        await console.until("document.querySelector('#model').value === 'fake-model'")
        await console.page.fill("#max-tokens", "400")
        await console.page.click("#ideas button")
        await console.until("document.querySelector('.meta')?.textContent.includes('400 tokens')")
        bubble, meta = "document.querySelector('.say.model')", "document.querySelector('.meta')"
        assert await console.page.evaluate(f"{bubble}.scrollHeight <= {bubble}.clientHeight")
        assert await console.page.evaluate("(c => c.scrollHeight <= c.clientHeight)(document.querySelector('.chat'))")
        assert await console.page.evaluate(f"{meta}.offsetTop >= {bubble}.offsetTop + {bubble}.offsetHeight")


async def test_a_refused_chat_says_why(browser: Any) -> None:
    async with running_gateway([]) as gateway, open_console(browser, gateway) as console:
        await console.page.wait_for_selector("#no-workers:not([hidden])")
        await console.page.fill("#prompt", "hello")
        await console.page.press("#prompt", "Enter")
        await console.page.wait_for_selector(".log .fault")
        assert "No worker is ready" in await console.page.inner_text(".log .fault")
        await console.shot("empty")


async def test_drain_needs_the_admin_key(browser: Any) -> None:
    keys = {"api_key": "client-key", "admin_api_key": "admin-key"}
    async with (
        lively_workers(2) as workers,
        running_gateway(workers, **keys) as gateway,
        open_console(browser, gateway) as console,
    ):
        page = console.page
        await page.wait_for_selector("#locked:not([hidden])")
        assert await page.query_selector(".tile") is None
        await page.fill("#key-input", "wrong")
        await page.press("#key-input", "Enter")
        await page.wait_for_selector("#key-fault:not(:empty)")
        await page.fill("#key-input", "client-key")
        await page.press("#key-input", "Enter")
        await console.until("document.querySelectorAll('.tile').length === 2")
        assert await page.evaluate("sessionStorage.getItem('canopy.key')") == "client-key"
        assert "key" not in await page.evaluate("JSON.stringify(localStorage)") and not await page.context.cookies()

        await page.click(tile(workers[0]))
        await page.click("#drain")
        await page.click("#confirm-go")
        await page.wait_for_selector("#confirm-fault:not(:empty)")
        assert "admin key" in await page.inner_text("#confirm-fault")
        assert [w.status.value for w in gateway.gateway.registry.snapshot.workers] == ["ready", "ready"]
        await page.fill("#admin-input", "wrong")
        await page.click("#confirm-go")
        await console.until("document.querySelector('#confirm-fault').textContent === 'That is not the admin key.'")
        await page.fill("#admin-input", "admin-key")
        await page.click("#confirm-go")
        await console.until("document.querySelectorAll('.tile').length === 1")
        assert [w.url for w in gateway.gateway.registry.snapshot.workers] == [workers[1].url]
        await page.click("#flush")
        await page.click("#confirm-go")
        await console.until("document.querySelector('#toast').textContent.includes('empty')")
        assert not console.faults


async def test_behind_tls(browser: Any, tmp_path: Path) -> None:
    own = make_certificate(tmp_path, "gateway")
    files = {"ssl_certfile": str(own.cert), "ssl_keyfile": str(own.key)}
    async with (
        lively_workers(1) as workers,
        running_gateway(workers, **files) as gateway,
        open_console(browser, gateway, protocol="https") as console,
    ):
        await console.until("document.querySelector('#link').dataset.state === 'live'")
        await console.page.click("#ideas button")
        await console.until("document.querySelector('.say.model')?.textContent.includes('need not')")
        assert not console.faults


async def test_by_keyboard_alone(browser: Any) -> None:
    async with (
        lively_workers(2) as workers,
        running_gateway(workers) as gateway,
        open_console(browser, gateway) as console,
    ):
        await console.until("document.querySelectorAll('.tile').length === 2")
        await console.page.focus(tile(workers[1]))
        await console.page.keyboard.press("Enter")
        await console.page.wait_for_selector("#replica[open]")
        assert await console.page.inner_text("#replica-name") == f"127.0.0.1:{workers[1].port}"
        await console.page.keyboard.press("Escape")
        await console.until("document.activeElement.classList.contains('tile')")
        unnamed = """[...document.querySelectorAll('button, input, select, textarea')].filter(e => e.offsetParent &&
            !e.textContent.trim() && !e.ariaLabel && !e.labels?.length && !e.title).length"""
        assert await console.page.evaluate(unnamed) == 0


async def test_a_lost_stream_is_told_and_found_again(browser: Any) -> None:
    async with (
        lively_workers(1) as workers,
        running_gateway(workers) as gateway,
        open_console(browser, gateway) as console,
    ):
        await console.until("document.querySelector('#link').dataset.state === 'live'")
        gateway.gateway.forwarder.draining = True
        await console.page.wait_for_selector("#lost:not([hidden])")
        assert "Numbers are of" in await console.page.inner_text("#lost-text")
        await console.shot("lost")
        await console.page.click("#retry")  # in vain: the banner stays
        gateway.gateway.forwarder.draining = False
        await console.until("document.querySelector('#link').dataset.state === 'live'")
        await console.page.wait_for_selector("#lost", state="hidden")


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "dark"), (PHONE, "light")])
async def test_a_hundred_replicas(browser: Any, size: tuple[int, int], scheme: str) -> None:
    async with (
        lively_workers(100) as workers,
        running_gateway(workers, ready=0, policy="cache_aware") as gateway,
        open_console(browser, gateway, size, scheme) as console,
    ):
        workers[7].healthy = False
        async with chats(gateway.client, 20, pause_s=1):
            await console.until("document.querySelectorAll('.tiles.compact .tile').length === 100")
            await console.page.wait_for_selector('.tile[data-state="degraded"]')
            assert await console.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await console.page.click('.chip[data-state="degraded"]')
            shown = "[...document.querySelectorAll('.tiles > li')].filter(li => !li.hidden).length"
            assert await console.page.evaluate(shown) == 1
            await console.page.click('.chip[data-state="degraded"]')
            await console.shot(f"hundred-{size[0]}")
        assert not console.faults


async def test_phone(browser: Any) -> None:
    async with (
        lively_workers(3) as workers,
        running_gateway(workers, policy="cache_aware") as gateway,
        open_console(browser, gateway, PHONE, "dark") as console,
    ):
        async with chats(gateway.client, 6):
            await console.until("document.querySelectorAll('#feed tr').length >= 6")
            assert await console.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await console.page.click("#ideas button")
            await console.until("document.querySelector('#clear').offsetParent")
            above = "document.querySelector('#clear').offsetTop < document.querySelector('#chat-title').offsetTop + 20"
            assert await console.page.evaluate(above)  # in one line
            await console.shot("phone", full=True)
        assert not console.faults
