"""The navigation: the list in groups, the tabs of views, the palette, and the way to a found message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

IN_VIEW = """(row) => {
  const list = row.closest('.conversations').getBoundingClientRect();
  const { top, bottom } = row.getBoundingClientRect();
  return top >= list.top && bottom <= Math.min(list.bottom, innerHeight);
}"""


def conversations(count: int, **first: Any) -> dict[str, Any]:
    """Return a list whose conversations are 0, 1, 2 … half days old."""
    now = datetime.now(UTC)
    items = [
        {
            "conversation_id": f"c{number}",
            "title": f"Crane {number}",
            "updated_at": (now - timedelta(hours=12 * (number - 1))).isoformat(),
        }
        for number in range(1, count + 1)
    ]
    items[0] |= first
    return {"items": items, "next": None}


async def rows_in_view(page: Page) -> int:
    rows = await page.locator(".conversation").all()
    return sum([await row.evaluate(IN_VIEW) for row in rows])


async def test_twelve_conversations_are_in_view_on_a_small_laptop(stage: Stage) -> None:
    """R38: below the ones that wait, in groups by day."""
    stage.resources |= scenes.RESOURCES
    stage.resources["context/conversations"] = conversations(40, status="awaiting_approval")
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 1280, "height": 800})
        await expect(page.locator(".conversation")).to_have_count(40)
        assert await rows_in_view(page) >= 12
        headings = page.locator(".sidebar-heading")
        await expect(headings.first).to_have_text("Waiting for you")
        await expect(page.locator(".conversation").first).to_contain_text("Crane 1")
        for name in ("Yesterday", "Previous 7 days"):
            await expect(headings.filter(has_text=name)).to_have_count(1)


async def test_a_tab_of_a_page_keeps_the_address_that_links_have(stage: Stage) -> None:
    """R38: an address of an earlier version leads to the tab, and each right shows its tabs."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/people")
        tabs = page.get_by_role("navigation", name="Manage").get_by_role("link")
        titles = ["Rules", "People", "MCP servers", "Models", "Audit trail", "Operations"]
        await expect(tabs).to_have_text(titles)
        await expect(tabs.nth(1)).to_have_attribute("aria-current", "page")
        await tabs.nth(5).click()
        await expect(page.get_by_role("heading", name="Operations", level=1)).to_be_focused()
        stage.rights = ("chat", "operator")
        await page.reload()
        await expect(page.get_by_role("region", name="Services")).to_be_visible()
        await expect(page.get_by_role("navigation", name="Manage")).to_have_count(0)
        await page.get_by_role("link", name="Library").click()
        library = page.get_by_role("navigation", name="Library").get_by_role("link")
        await expect(library).to_have_text(["Assistants", "Workflows", "Schedules"])


@pytest.mark.parametrize("language", ["en", "de"])
async def test_the_navigation_works_on_a_phone(stage: Stage, language: str) -> None:
    """R38: as a drawer, whose menus stay on the screen."""
    stage.resources["context/conversations"] = conversations(20)
    label = {"en": "Conversations", "de": "Unterhaltungen"}[language]
    async with opened(stage.url) as page:
        await page.evaluate("(language) => localStorage.setItem('banksman.language', language)", language)
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.reload()
        await page.get_by_role("button", name=label, exact=True).click()
        await page.locator(".account button").click()
        for item in await page.get_by_role("menuitem").all():
            await expect(item).to_be_in_viewport(ratio=1)
        await page.get_by_role("menuitem").first.click()
        await expect(page.locator(".sidebar")).to_be_hidden()
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_the_palette_finds_commands_conversations_and_messages_and_stays_in_place(stage: Stage) -> None:
    """R38: by keyboard alone; one Escape closes it, also with a text."""
    stage.resources["context/conversations"] = conversations(3)
    found = {"items": [{"conversation_id": "c9", "title": "Old crane"}], "next": None}
    stage.resources["context/conversations?limit=20&q=old"] = found
    async with opened(stage.url) as page:
        await expect(page.get_by_text("Crane 3")).to_be_visible()
        await page.get_by_role("textbox", name="Message").press("Control+k")
        box = page.get_by_role("combobox")
        await expect(page.get_by_role("group", name="Commands").get_by_text("People")).to_be_visible()
        before = await box.bounding_box()
        await page.keyboard.type("old")
        await expect(page.get_by_role("option")).to_have_text(["Old crane"])
        assert await box.bounding_box() == before
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)

        await page.get_by_role("button", name="Search Ctrl K").click()
        await page.keyboard.type("old")
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/#/c/c9")
        await page.get_by_role("textbox", name="Message").press("Control+k")
        await page.keyboard.type("conversation: rena")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog", name="Rename conversation")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("appro")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
        await page.keyboard.press("?")
        await expect(page.get_by_text("Approve the focused request")).to_be_visible()


async def test_a_found_message_is_scrolled_to_and_marked(stage: Stage) -> None:
    """R38: far above the end of a long conversation; later text does not move it."""
    for number in range(1, 41):
        run_id, text = f"c1-r{number}", f"Load {number} is safe.\n\n" + "Checked.\n\n" * 20
        started = {
            "message_id": f"m{number}",
            "message": "How large is it?",
            "model": "demo:model",
            "limits": {},
        }
        stage.event("run.started", started, run_id=run_id)
        message = {"message_id": f"a{number}", "role": "assistant", "content": text}
        stage.event("message.completed", message, run_id=run_id)
        ended = {"status": "completed", "content": text, "model": "demo:model", "iterations": 1, "usage": {}}
        stage.event("run.finished", {**ended, "error": None}, run_id=run_id)
    hit = {"conversation_id": "c1", "title": "Cranes", "message_id": "a7", "snippet": "Load 7 is safe."}
    stage.resources["context/search"] = {"items": [hit], "next": None}
    async with opened(stage.url) as page:
        await page.get_by_role("textbox", name="Message").press("Control+k")
        await expect(page.get_by_role("combobox")).to_be_focused()
        await page.keyboard.type("Load 7")
        await page.get_by_role("option").filter(has_text="Load 7 is safe.").click()
        message = page.locator("[data-message=a7]")
        await expect(message).to_be_focused()
        await expect(message).to_be_in_viewport()
        await expect(page.get_by_role("button", name="Latest")).to_be_visible()
        await page.reload()
        await expect(message).to_be_in_viewport()
