"""Closed connections and a frozen gateway: the page returns, and shows what came meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Page, WebSocketRoute, expect

from tests.e2e.tasks.people import WIDE, Office
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
LOST = "Connection lost. Your runs continue."
CODES = (1001, 1005, 1006, 1012, 1013, 1014)
"""Codes of proxies and servers that restart, lose a connection, or are overloaded."""
NOTICED_MS = 6_000
"""Five seconds, and one for a busy machine."""


@dataclass
class Proxy:
    """Between the page and the gateway; while it refuses, each websocket is closed with one code."""

    refuses: int | None = None
    open: list[WebSocketRoute] = field(default_factory=list[WebSocketRoute])

    async def connect(self, route: WebSocketRoute) -> None:
        if self.refuses is not None:
            await route.close(code=self.refuses)
            return
        route.connect_to_server()
        self.open.append(route)

    async def close(self, code: int) -> None:
        self.refuses = code
        while self.open:
            await self.open.pop().close(code=code)


async def written(office: Office, conversation: str, text: str) -> None:
    """Write a message with another client, and wait for the end of its run."""
    async with office.http() as http:
        sent = await http.post(f"/context/conversations/{conversation}/runs", json={"content": text})
        assert sent.status_code == 202, sent.text
        ended = await http.get(f"/context/runs/{sent.json()['run_id']}", params={"wait_s": 30})
    assert ended.json()["status"] == "completed", ended.text


async def test_the_page_returns_after_each_close_code_and_shows_what_came_meanwhile(office: Office) -> None:
    """R36: a message and its reply, which another client caused while the page was cut off."""
    model = office.play(*(ScriptedReply(text=f"Reply to {code}.") for code in (0, *CODES)))
    conversation = await office.conversation(model=model)
    proxy = Proxy()
    async with office.person(WIDE) as me:
        page = me.page
        await page.route_web_socket("**/ws*", proxy.connect)
        await page.goto(f"{office.system.url}/#/c/{conversation}")
        await page.reload()
        await me.ask("Hello.")
        await me.ended()
        for number, code in enumerate(CODES, 2):
            await proxy.close(code)
            await expect(page.get_by_text(LOST)).to_be_visible()
            await written(office, conversation, f"Written at {code}.")
            await expect(page.get_by_text(f"Written at {code}.")).to_have_count(0)
            proxy.refuses = None
            await expect(page.get_by_text(f"Reply to {code}.")).to_be_visible()
            await expect(page.get_by_text(f"Written at {code}.")).to_have_count(1)
            await expect(page.get_by_text(LOST)).to_be_hidden()
            await me.ended(count=number)


@contextmanager
def frozen(office: Office) -> Generator[None]:
    pid = office.system.service_pids("gateway")[-1]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("hidden", [False, True], ids=["idle", "hidden"])
async def test_a_frozen_gateway_is_noticed_within_five_seconds_and_the_page_continues(
    office: Office, hidden: bool
) -> None:
    """R36: no reply is expected. A hidden tab is frozen too, and notices it when it is shown again."""
    model = office.play(*(ScriptedReply(text=text) for text in ("First.", "Second.", "Third.")))
    conversation = await office.conversation(model=model)
    async with office.at(conversation, WIDE) as me:
        page = me.page
        await me.ask("Hello.")
        await me.ended()
        if hidden:
            await _hide(page)
            await written(office, conversation, "Written while the tab was hidden.")
        with frozen(office):
            if hidden:
                await _show(page)
            await expect(page.get_by_text(LOST)).to_be_visible(timeout=NOTICED_MS)
        await expect(page.get_by_text(LOST)).to_be_hidden()
        if not hidden:
            await written(office, conversation, "Written afterwards.")
        await expect(page.get_by_text("Second.", exact=True)).to_be_visible()
        await me.ask("And now?")
        await expect(page.get_by_text("Third.", exact=True)).to_be_visible()
        await me.ended(count=3)


async def _hide(page: Page) -> None:
    """Hide the tab as a phone does: the page is notified, and then its timers and network events stop."""
    await page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    session = await page.context.new_cdp_session(page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})


async def _show(page: Page) -> None:
    session = await page.context.new_cdp_session(page)
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    await page.evaluate(
        "() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }"
    )
