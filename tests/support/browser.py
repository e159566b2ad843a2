"""The web page in a headless browser."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from playwright.async_api import Browser, Page, StorageState, async_playwright, expect

from tests.support.timeouts import WAIT_TIMEOUT_S

CHROMIUM = "/usr/bin/chromium"
HEADLESS = shutil.which("chromium-headless-shell") or CHROMIUM
"""The same engine without the parts of a desktop browser, which take a fifth of the CPU time of a page.

It has no notifications. Distributions other than Debian have no package of it.
"""
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-sync"]
WAIT_TIMEOUT_MS = 1000 * WAIT_TIMEOUT_S

# The default of 5 s fails by chance on a busy machine.
expect.set_options(timeout=WAIT_TIMEOUT_MS)


@dataclass(frozen=True)
class Look:
    """How a person sees the page."""

    width: int = 1280
    theme: Literal["light", "dark"] = "light"
    language: str = "en-US"


_shared: dict[asyncio.AbstractEventLoop, Browser] = {}
"""The browser that all pages of an event loop share."""


@asynccontextmanager
async def started_browser(program: str = HEADLESS) -> AsyncGenerator[Browser]:
    """Run Chromium, or its headless shell."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        await browser.close()


@asynccontextmanager
async def shared_browser() -> AsyncGenerator[None]:
    """Let `opened` use one browser for all pages on this event loop: a start takes over a second of CPU time.

    Pages of different calls share no storage, no cookies and no cache.
    """
    loop = asyncio.get_running_loop()
    async with started_browser() as browser:
        _shared[loop] = browser
        try:
            yield
        finally:
            del _shared[loop]


@asynccontextmanager
async def _browser(program: str) -> AsyncGenerator[Browser]:
    if program == HEADLESS and (browser := _shared.get(asyncio.get_running_loop())):
        yield browser
        return
    async with started_browser(program) as browser:
        yield browser


def _signed_in(url: str, token: str | None) -> StorageState | None:
    if token is None:
        return None
    return {
        "cookies": [],
        "origins": [{"origin": url, "localStorage": [{"name": "banksman.token", "value": token}]}],
    }


@asynccontextmanager
async def opened(
    url: str,
    *,
    also: str = "about:",
    bypass_csp: bool = False,
    offline_shell: bool = False,
    look: Look = Look(),
    token: str | None = None,
) -> AsyncGenerator[Page]:
    """Open the page. A page error or a request to another host fails the test.

    Args:
        url: The gateway's address.
        also: URL prefix of another site that the page may load.
        bypass_csp: Allow scripts of the test to run in the page.
        offline_shell: Allow the page's service worker, which replaces the gateway for some requests.
        look: Width of the window, theme and language.
        token: A key with which the user has signed in.
    """
    problems: list[str] = []

    def check(address: str) -> None:
        if not address.startswith((url, also, "data:", "blob:", "about:")):
            problems.append(address)

    # A service worker shows notifications, and outlives pages as it does for users.
    async with _browser(CHROMIUM if offline_shell else HEADLESS) as browser:
        context = await browser.new_context(
            viewport={"width": look.width, "height": 860},
            color_scheme=look.theme,
            locale=look.language,
            storage_state=_signed_in(url, token),
            bypass_csp=bypass_csp,
            # Without a GPU, a moving dot takes half of a core.
            reduced_motion="reduce",
            service_workers="allow" if offline_shell else "block",
        )
        async with context:
            page = await context.new_page()
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", lambda request: check(request.url))
            page.set_default_timeout(WAIT_TIMEOUT_MS)
            await page.goto(url)
            yield page
    assert problems == []


async def send_message(page: Page, text: str) -> None:
    """Type a message and send it."""
    box = page.get_by_role("textbox", name="Message")
    await box.fill(text)
    await box.press("Enter")
