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


async def test_a_list_is_read_again_only_at_its_beginning_and_as_far_as_one_works(stage: Stage) -> None:
    """What was read of a long list stays; what others removed from its beginning does not."""

    def listed(number: int, status: str = "idle") -> dict[str, str]:
        return {"conversation_id": f"c{number}", "title": f"Crane {number}", "status": status}

    path = "context/conversations"
    stage.resources[path] = {"items": [listed(number) for number in range(1, 31)], "next": "7"}
    stage.resources[f"{path}?limit=50&cursor=7"] = {"items": [listed(31, "running")], "next": None}
    newest = [{**listed(1), "title": "Renamed"}, *(listed(number) for number in range(3, 16))]
    stage.resources[f"{path}?limit=15"] = {"items": newest, "next": "9"}
    working = [*newest, *(listed(number) for number in range(16, 32))]
    stage.resources[f"{path}?limit=30"] = {"items": working, "next": "3"}
    start(stage)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(".run")).to_have_count(1)
        await expect(page.get_by_role("link", name="Crane 30")).to_have_count(1)
        async with page.expect_response(lambda response: response.url.endswith("?limit=15")):
            await stage.send(stage.event("run.finished", {"status": "completed", "content": ""}))
        await expect(page.get_by_role("link", name="Renamed")).to_have_count(1)
        await expect(page.get_by_role("link", name="Crane 2", exact=True)).to_have_count(0)
        await page.get_by_role("button", name="Show more").click()
        await expect(page.locator(".conversation")).to_have_count(30)
        async with page.expect_response(lambda response: response.url.endswith("?limit=30")):
            await stage.send(
                stage.event("run.started", {"message_id": "m2", "message": "On"}, run_id="c1-r2")
            )
        await expect(page.locator(".conversation")).to_have_count(30)


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
