"""Drafts belong to their conversation, and are kept in the browser."""

from __future__ import annotations

import pytest
from playwright.async_api import FilePayload, Page, expect

from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

LISTED = [{"conversation_id": f"c{number}", "title": f"Crane {number}"} for number in (1, 2)]


async def box(page: Page, conversation: str, stage: Stage) -> str:
    """Open a conversation; return what its message box contains."""
    await page.goto(f"{stage.url}/#/c/{conversation}")
    await expect(page.get_by_role("button", name=f"Crane {conversation[1:]}").first).to_be_visible()
    return await page.get_by_role("textbox", name="Message").input_value()


async def test_a_draft_stays_in_its_conversation_through_a_reload_and_a_sign_in(stage: Stage) -> None:
    """R38: with its file; nothing of it is in another conversation, and a sign-out removes it."""
    stage.resources["context/conversations"] = {"items": LISTED}
    stage.token = "right"
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await page.get_by_label("Key").fill("right")
        await page.get_by_role("button", name="Sign in").click()
        message = page.get_by_role("textbox", name="Message")
        await message.fill("half a thought")
        file: FilePayload = {"name": "load.csv", "mimeType": "text/csv", "buffer": b"40"}
        await page.locator(".composer input[type=file]").set_input_files(file)
        await expect(page.get_by_text("load.csv")).to_be_visible()
        await page.goto(f"{stage.url}/#/c/c2")
        await expect(message).to_have_value("")
        await expect(page.get_by_text("load.csv")).to_have_count(0)
        await message.fill("another one")
        await page.evaluate("localStorage.removeItem('banksman.token')")
        await page.reload()
        await page.get_by_label("Key").fill("right")
        await page.get_by_role("button", name="Sign in").click()
        await expect(message).to_have_value("another one")
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(message).to_have_value("half a thought")
        await expect(page.get_by_text("load.csv")).to_be_visible()
        await message.press("Enter")
        await expect(message).to_have_value("")
        await expect(page.locator(".bubble.sending")).to_have_count(0)
        await page.reload()
        await expect(message).to_be_visible()
        await expect(message).to_have_value("")


async def test_a_frozen_gateway_is_noticed_as_soon_as_the_page_is_shown_again(stage: Stage) -> None:
    """R36: systems cut the connection of a hidden tab without a word."""
    async with opened(stage.url) as page:
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        stage.frozen = True
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(page.get_by_text("Connection lost")).to_be_visible(timeout=5_000)
        stage.frozen = False
        await expect(page.get_by_text("Connection lost")).to_have_count(0)
