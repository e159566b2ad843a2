"""What a person writes, chooses and points at stays as it is while the page changes around it."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.e2e import scenes
from tests.e2e.assistant_scenes import assistants
from tests.e2e.stage import Stage, open_conversation
from tests.e2e.test_approvals_inbox import PATH, put, replies
from tests.e2e.test_navigation import conversations
from tests.e2e.test_workspace_panel import FILES
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

CLICK_WHEN_GONE = """(gone) => new Promise((done) => {
  const list = document.querySelector('.inbox');
  const button = [...list.querySelectorAll('.approval .primary')].at(-1);
  new MutationObserver((_, observer) => {
    if (list.querySelector(gone)) return;
    observer.disconnect();
    button.dispatchEvent(new MouseEvent('click', { bubbles: true, detail: 1 }));
    done();
  }).observe(list, { childList: true });
})"""
PASTE = """(box, characters) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData('text/plain', 'x'.repeat(characters));
  box.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }));
}"""
MENU = "Actions for Crane 51"
REFRESH = "document.dispatchEvent(new Event('visibilitychange'))"


async def middle(button: Locator) -> tuple[float, float]:
    box = await button.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def message(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


async def test_a_double_click_decides_one_request(stage: Stage) -> None:
    """R13: the next request moves below the pointer before the second click."""
    put(stage, 1, 2)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/approvals")
        first = page.locator("[data-request=p1]")
        place = await middle(first.get_by_role("button", name="Approve", exact=True))
        put(stage, 2)
        await page.mouse.click(*place)
        await expect(page.locator("[data-request=p1]")).to_have_count(0)
        await page.mouse.down(click_count=2)
        await page.mouse.up(click_count=2)
        await page.get_by_role("button", name="Reject and stop").click()
        sent = await replies(stage, 2)
    assert [(one["approval_id"], one["all"]) for one in sent] == [("p1", "approve"), ("p2", "reject")]


async def test_a_click_on_a_request_that_has_just_moved_decides_nothing(stage: Stage) -> None:
    """R13: another person decided the one above it."""
    put(stage, 1, 2)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/approvals")
        await expect(page.locator("[data-request=p2]")).to_be_visible()
        clicked = asyncio.create_task(page.evaluate(CLICK_WHEN_GONE, "[data-request=p1]"))
        await page.evaluate("1")
        put(stage, 2)
        await stage.send({"type": "approvals.changed"})
        await clicked
        # The keyboard goes where its focus is.
        await page.keyboard.press("j")
        await page.keyboard.press("r")
        (reply,) = await replies(stage, 1)
    assert (reply["approval_id"], reply["all"]) == ("p2", "reject")


async def test_a_refresh_keeps_the_further_pages_and_what_is_written_in_a_dialog(stage: Stage) -> None:
    """R38: the list is read again every 20 s and at each event."""
    all_items = conversations(60)["items"]
    stage.resources["context/conversations"] = {"items": all_items[:50], "next": "50"}
    further = {"items": all_items[50:], "next": None}
    stage.resources["context/conversations?limit=50&cursor=50"] = further
    async with opened(stage.url) as page:
        await page.get_by_role("button", name="Show more").click()
        await expect(page.locator(".conversation")).to_have_count(60)
        await page.get_by_role("button", name=MENU, exact=True).press("Enter")
        await page.get_by_role("menuitem", name="Rename").click()
        title = page.get_by_role("dialog").get_by_label("Title")
        await title.fill("North cr")
        # One is new, and one of the first page is gone.
        newest = {**all_items[0], "conversation_id": "c99", "title": "Newest"}
        shown = [newest, *all_items[1:49]]
        stage.resources["context/conversations"] = {"items": shown, "next": "49"}
        await page.evaluate(REFRESH)
        await expect(page.get_by_text("Newest")).to_have_count(1)
        await expect(title).to_have_value("North cr")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name=MENU, exact=True)).to_be_focused()
        await expect(page.locator(".conversation")).to_have_count(60)


async def test_a_dialog_begins_at_its_field_keeps_a_selection_and_returns_the_focus(stage: Stage) -> None:
    """R38: a selection that ends outside is no click outside; the menu gets the focus back."""
    scenes.ended(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        menu = page.get_by_role("button", name="Conversation actions")
        for item in ("Labels", "Rename"):
            await menu.click()
            await page.get_by_role("menuitem", name=item).click()
            await expect(page.get_by_role("dialog").get_by_role("textbox")).to_be_focused()
            await page.mouse.move(*await middle(page.get_by_role("dialog").get_by_role("textbox")))
            await page.mouse.down()
            await page.mouse.move(8, 700)
            await page.mouse.up()
            await expect(page.get_by_role("dialog")).to_be_visible()
            await page.mouse.click(8, 700)
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await expect(menu).to_be_focused()
        files = page.get_by_role("button", name="Files", exact=True)
        await files.click()
        await expect(page.get_by_role("complementary", name="Files")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(files).to_be_focused()


async def test_enter_in_the_palette_opens_only_what_contains_the_text(stage: Stage) -> None:
    """R38: the results of an earlier text are still there when the key is pressed."""
    stage.resources["context/conversations"] = conversations(3)
    tower = {"items": [{"conversation_id": "c9", "title": "Tower"}], "next": None}
    stage.resources["context/conversations?limit=20&q=tower"] = tower
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        await released.wait()
        await route.continue_()

    async with opened(stage.url) as page:
        await page.route("**/conversations?limit=20&q=tower", hold)
        await message(page).press("Control+k")
        await expect(page.get_by_role("dialog").get_by_role("option", name="Crane 3")).to_be_visible()
        await page.keyboard.type("tower")
        await page.keyboard.press("Enter")
        released.set()
        await expect(page.get_by_role("option")).to_have_text(["Tower"])
        assert page.url.endswith("/")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/#/c/c9")


async def test_back_closes_what_is_open_over_a_view(stage: Stage) -> None:
    scenes.ended(stage)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/settings")
        await page.goto(f"{stage.url}/#/c/c1")
        await page.get_by_role("button", name="Workflows").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.go_back()
        await expect(page.get_by_role("heading", name="Settings")).to_be_focused()
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_message_that_was_not_sent_is_a_draft_after_a_reload(stage: Stage) -> None:
    """R36: it was in the memory of the page alone."""
    scenes.ended(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        stage.frozen = True
        await message(page).fill("Lift it higher.")
        await message(page).press("Enter")
        await expect(page.locator(".bubble.sending")).to_have_text("Lift it higher.")
        await message(page).fill("And then?")
        stage.frozen = False
        await page.reload()
        await expect(message(page)).to_have_value("Lift it higher.\n\nAnd then?")


async def test_a_text_that_no_gateway_takes_is_attached_or_stays_with_its_reason(stage: Stage) -> None:
    """R34: a frame above 256 KiB would end the connection, and the message with it."""
    scenes.ended(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await message(page).evaluate(PASTE, 60_000)
        await expect(page.locator(".attached-file")).to_contain_text("Pasted text.txt")
        await page.get_by_role("button", name="Remove Pasted text.txt").click()
        await message(page).fill("荷" * 100_000)
        await message(page).press("Enter")
        await expect(page.get_by_text("Not sent: This text is too long to be sent.")).to_be_visible()
        await expect(page.get_by_text("The connection was closed")).to_have_count(0)
        await page.get_by_role("button", name="Discard").click()
        await message(page).fill("Short.")
        await message(page).press("Enter")
        await expect(page.locator(".bubble.sending")).to_have_count(0)
    assert [frame["content"] for frame in stage.received if frame["type"] == "chat.send"] == ["Short."]


async def test_what_is_written_in_a_form_is_there_after_another_view(stage: Stage) -> None:
    """R38: in a request, a file, an assistant and a version of a message."""
    scenes.ended(stage)
    assistants(stage)
    stage.resources[FILES] = {"items": [{"path": "notes.md", "size": 4}], "next": None}
    stage.resources[f"{FILES}/notes.md"] = b"one\n"
    put(stage, 1)

    async def away_and_back(page: Page) -> None:
        address = page.url
        await page.goto(f"{stage.url}/#/settings")
        await expect(page.get_by_role("heading", name="Settings")).to_be_focused()
        await page.goto(address)

    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/approvals")
        await page.get_by_role("button", name="Edit").click()
        field = page.locator(".approval-editor textarea")
        await field.fill("echo safe")
        await away_and_back(page)
        await expect(field).to_have_value("echo safe")

        await page.goto(f"{stage.url}/#/assistants/cranes")
        prompt = page.get_by_label("Prompt", exact=True)
        await prompt.fill("Lift with care.")
        await away_and_back(page)
        await expect(prompt).to_have_value("Lift with care.")

        await open_conversation(page, stage)
        await page.get_by_role("button", name="Edit and send again").first.click()
        version = page.get_by_role("textbox", name="Edit and send again")
        await version.fill("How heavy?")
        await away_and_back(page)
        await expect(version).to_have_value("How heavy?")

        await page.get_by_role("button", name="Files", exact=True).click()
        await page.get_by_role("button", name="notes.md").first.click()
        await page.get_by_role("button", name="Edit", exact=True).click()
        file = page.get_by_role("textbox", name="Content of notes.md")
        await file.fill("two\n")
        await page.get_by_role("button", name="Close files").click()
        await page.get_by_role("button", name="Files", exact=True).click()
        await page.get_by_role("button", name="notes.md").first.click()
        await expect(file).to_have_value("two\n")


async def test_a_form_keeps_what_is_written_while_it_is_saved(stage: Stage) -> None:
    """R34: the answer of the server replaces only what was sent."""
    stage.resources["context/instructions"] = {"user": "ada", "text": "In Latin."}
    stage.resources["PUT context/instructions"] = {"user": "ada", "text": "In Greek."}
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "PUT":
            await released.wait()
        await route.continue_()

    async with opened(stage.url) as page:
        await page.route("**/context/instructions", hold)
        await page.goto(f"{stage.url}/#/settings")
        field = page.get_by_label("Your instructions")
        await expect(field).to_have_value("In Latin.")
        await field.fill("In Greek.")
        await page.get_by_role("button", name="Save").click()
        await field.fill("In Greek, briefly.")
        released.set()
        await expect(page.get_by_text("Your instructions are saved.")).to_be_visible()
        await expect(field).to_have_value("In Greek, briefly.")
        await expect(page.get_by_role("button", name="Save")).to_be_enabled()
    assert json.loads(stage.uploads["context/instructions"]) == {"text": "In Greek."}


def rtl_command() -> dict[str, Any]:
    """Return a call with words of both directions."""
    item = scenes.command(1)
    text = "cp תיקייה/קובץ.txt מרחבא"
    return {**item, "arguments": {"command": text}, "preview": {"kind": "command", "command": text}}


PLACES = """(node) => {
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  const places = [];
  while (walker.nextNode())
    for (let at = 0; at < walker.currentNode.length; at += 1) {
      const range = document.createRange();
      range.setStart(walker.currentNode, at);
      range.setEnd(walker.currentNode, at + 1);
      places.push(range.getBoundingClientRect().left);
    }
  return places;
}"""


async def test_words_of_both_directions_are_legible_in_a_request_and_stay_in_order(stage: Stage) -> None:
    """R13: letters of a word run as it is read; its place among the others is that in the command."""
    stage.resources[PATH] = {"items": [{**scenes.pending(1), "items": [rtl_command()]}], "next": None}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/approvals")
        shown = page.locator(".preview.command")
        text = await shown.inner_text()
        places = await shown.evaluate(PLACES)
    assert text == "cp תיקייה/קובץ.txt מרחבא"
    groups = ("cp ", "תיקייה", "/", "קובץ", ".txt ", "מרחבא")
    lefts = [places[text.index(group) : text.index(group) + len(group)] for group in groups]
    for before, after in pairwise(lefts):
        assert max(before) < min(after), groups
    for letters in lefts[1::2]:
        assert letters == sorted(letters, reverse=True)
