"""A headless Chromium by Playwright; where the machine has none, tests that ask for it are skipped with the reason."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator

import pytest

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[object]:
    """The browser: a playwright.async_api.Browser."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs Debian's Chromium: make browser")
    api = pytest.importorskip("playwright.async_api", reason="needs the Python package playwright: make setup")
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, headless=True, args=_FLAGS)
        try:
            yield browser
        finally:
            await browser.close()
