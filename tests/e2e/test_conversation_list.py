"""The list of conversations: pinned ones, the archive; export; a link to read."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.async_api import expect

from tests.e2e.scenes import finish, reply, start
from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

CRANES = {"conversation_id": "c1", "title": "Cranes", "pinned": True}


async def test_a_user_pins_archives_and_exports(stage: Stage) -> None:
    stage.resources["context/conversations"] = {"items": [CRANES]}
    stage.resources["context/conversations/c1"] = CRANES
    start(stage)
    async with opened(stage.url) as page:
        await expect(page.get_by_text("Pinned", exact=True)).to_be_visible()
        menu = page.get_by_role("button", name="Actions for Cranes")
        await menu.click()
        await expect(page.get_by_text("Pinned", exact=True)).to_be_visible()
        await page.get_by_role("menuitem", name="Unpin").click()
        path = "context/conversations/c1"
        await eventually(lambda: stage.uploads.get(path) == b'{"pinned":false}' or None, WAIT_TIMEOUT_S)
        await menu.click()
        await page.get_by_role("menuitem", name="Archive").click()
        await eventually(lambda: stage.uploads.get(path) == b'{"archived":true}' or None, WAIT_TIMEOUT_S)

        await menu.click()
        async with page.expect_download() as download:
            await page.get_by_role("menuitem", name="Export as JSON").click()
        saved = Path(await (await download.value).path())
        exported = json.loads(saved.read_text())  # noqa: ASYNC240
    assert len(exported["events"]) == len(stage.frames)


async def test_pinned_conversations_of_a_long_list_are_found_on_later_pages(stage: Stage) -> None:
    """A page of a list that takes too long to read ends early, with the cursor of the next one."""
    query = "context/conversations?limit=50&pinned=true"
    stage.resources["context/conversations"] = {"items": []}
    stage.resources[query] = {"items": [], "next": "7"}
    stage.resources[f"{query}&cursor=7"] = {"items": [CRANES], "next": None}
    async with opened(stage.url) as page:
        await expect(page.get_by_role("link", name="Cranes")).to_be_visible()


async def test_a_link_shows_a_conversation_without_controls(stage: Stage) -> None:
    start(stage)
    reply(stage, "It is 40 t.")
    finish(stage)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/read/c1")
        await expect(page.get_by_text("It is 40 t.")).to_be_visible()
        await expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
        await expect(page.get_by_role("button", name="Edit and send again")).to_be_hidden()
        await expect(page.get_by_role("heading", name="The load of the crane")).to_be_visible()
