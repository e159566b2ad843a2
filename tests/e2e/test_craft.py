"""What all views have in common: one left edge and width, reachable buttons, and one action when empty."""

from __future__ import annotations

import pytest
from playwright.async_api import FilePayload, expect

from tests.e2e import mcp_scenes, scenes
from tests.e2e.assistant_scenes import assistants
from tests.e2e.run_scenes import runs
from tests.e2e.stage import RUN, Stage, open_conversation
from tests.e2e.test_rules import POLICY, REMEMBERED
from tests.support.browser import Look, opened
from tests.support.polling import eventually

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

VIEWS = (
    f"runs/{RUN}", "approvals", "assistants", "assistants/cranes", "workflows", "schedules", "rules",
    "people", "mcp", "mcp/issues", "models", "audit", "operator", "settings",
)  # fmt: skip

EDGES = """() => {
  const view = document.querySelector('.view');
  const { paddingLeft, paddingRight } = getComputedStyle(view);
  const { left, right } = view.getBoundingClientRect();
  const tab = document.querySelector('.tabs a');
  return {
    title: document.querySelector('#title').getBoundingClientRect().left,
    text: left + parseFloat(paddingLeft),
    tabs: tab && tab.getBoundingClientRect().left + parseFloat(getComputedStyle(tab).paddingLeft),
    width: right - left - parseFloat(paddingLeft) - parseFloat(paddingRight),
    narrower: [...view.children].filter((child) => getComputedStyle(child).maxWidth !== 'none').length,
  };
}"""

SEND_IS_REACHABLE = """() => {
  const send = document.querySelector('.send');
  const { left, top, width, height } = send.getBoundingClientRect();
  return send.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}"""


@pytest.mark.parametrize("width", [1280, 1920])
async def test_every_view_begins_at_the_same_edge_and_has_the_same_width(stage: Stage, width: int) -> None:
    """R38: the text begins below the title and the tabs, and moves with no view."""
    stage.resources |= scenes.RESOURCES | mcp_scenes.RESOURCES
    stage.resources |= {"context/policy": POLICY, "context/remembered": {"items": [REMEMBERED]}}
    assistants(stage)
    runs(stage)
    found: dict[str, dict[str, float]] = {}
    async with opened(stage.url, look=Look(width)) as page:
        for view in VIEWS:
            await page.goto(f"{stage.url}/#/{view}")
            await expect(page.locator(".view")).to_be_visible()
            found[view] = await page.evaluate(EDGES)
    assert len({edges["width"] for edges in found.values()}) == 1, found
    for view, edges in found.items():
        lefts = {round(edges[name]) for name in ("title", "text", "tabs") if edges[name] is not None}
        assert len(lefts) == 1, (view, edges)
        assert edges["narrower"] == 0, view


@pytest.mark.parametrize("width", [390, 1280])
async def test_toasts_never_cover_the_button_that_sends(stage: Stage, width: int) -> None:
    """R38: also several long ones."""
    scenes.start(stage)
    error = {"code": "conflict", "message": "The run has ended, and nothing is left to stop. " * 8}
    stage.refused["run.cancel"] = error
    async with opened(stage.url, look=Look(width)) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        stop = page.locator(".activity .stop")
        for count in range(1, 6):
            await stop.dispatch_event("click")
            await expect(page.locator(".toast")).to_have_count(count)
        await page.get_by_role("textbox", name="Message").fill("Next")
        assert await page.evaluate(SEND_IS_REACHABLE)


async def test_an_empty_list_offers_one_action_and_a_failed_one_is_read_again(stage: Stage) -> None:
    """R38: the action is where the entries will be; after an error it takes no reload of the page."""
    stage.failures["GET context/mcp-servers"] = (503, {"code": "unavailable", "message": "NATS is away."})
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/mcp")
        again = page.get_by_role("button", name="Try again")
        await expect(page.get_by_text("NATS is away.")).to_be_visible()
        stage.failures.clear()
        await again.click()
        add = page.get_by_role("button", name="Add a server")
        await expect(page.locator(".empty").get_by_role("button")).to_have_count(1)
        await expect(add).to_have_count(1)
        await add.click()
        await expect(page.get_by_role("dialog")).to_be_visible()


@pytest.mark.parametrize(
    ("view", "action"), [("approvals", "Decided approvals"), ("runs", "New conversation")]
)
async def test_an_empty_view_leads_on(stage: Stage, view: str, action: str) -> None:
    """R38: there is one thing to do next."""
    stage.resources |= scenes.RESOURCES | {"context/approvals": {"items": [], "next": None}}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/{view}")
        await expect(page.locator(".empty").get_by_role("link", name=action)).to_be_visible()


async def test_an_empty_workspace_takes_a_file(stage: Stage) -> None:
    """R38: the button in the middle uploads, as the one above the list does."""
    scenes.start(stage)
    stage.resources["context/conversations/c1/files"] = {"items": [], "next": None}
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.get_by_role("button", name="Files", exact=True).click()
        async with page.expect_file_chooser() as chosen:
            await page.locator(".empty").get_by_role("button", name="Upload").click()
        notes: FilePayload = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hi"}
        await (await chosen.value).set_files([notes])
        await eventually(lambda: b"hi" in stage.uploads.values())


@pytest.mark.parametrize("width", [390, 1280])
async def test_edit_stays_where_it_is_when_its_key_appears(stage: Stage, width: int) -> None:
    """A link that moves under the pointer loses the click."""
    scenes.start(stage)
    scenes.request_approval(stage, scenes.command(1))
    async with opened(stage.url, look=Look(width)) as page:
        await open_conversation(page, stage)
        edit = page.locator(".approval .edit")
        before = await edit.bounding_box()
        await page.locator(".approval.pending").focus()
        assert await edit.bounding_box() == before


async def test_a_low_window_shows_what_will_run(stage: Stage) -> None:
    """R38: at 200 % of zoom, buttons that stay in view would cover it."""
    scenes.start(stage)
    scenes.request_approval(stage, scenes.command(1))
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 640, "height": 400})
        await open_conversation(page, stage)
        await page.locator(".approval .preview").scroll_into_view_if_needed()
        assert await page.evaluate(LINES_IN_VIEW) >= 5
        approve = page.get_by_role("button", name="Approve", exact=True)
        await approve.scroll_into_view_if_needed()
        await approve.click(trial=True)


LINES_IN_VIEW = """() => {
  const shown = document.querySelector('.approval .preview');
  const { left, top, height } = shown.getBoundingClientRect();
  const lines = [...Array(8).keys()].map((line) => top + ((line + 0.5) * height) / 8);
  return lines.filter((y) => shown.contains(document.elementFromPoint(left + 24, y))).length;
}"""


async def test_paper_has_the_whole_conversation_and_no_controls(stage: Stage) -> None:
    """R38: not the part that is in view, in either theme."""
    scenes.start(stage)
    scenes.reply(stage, "\n\n".join(f"Paragraph {number}." for number in range(80)))
    scenes.finish(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.emulate_media(media="print")
        height = await page.evaluate("document.documentElement.scrollHeight")
        assert height > 2_000
        for control in (".sidebar", ".composer", ".header button", ".reply-tools"):
            await expect(page.locator(control).first).to_be_hidden()


async def test_colours_of_the_system_show_what_is_chosen(stage: Stage) -> None:
    """R38: a background shows nothing there."""
    stage.resources["context/conversations"] = {"items": [{"conversation_id": "c1", "title": "Crane"}]}
    scenes.start(stage)
    async with opened(stage.url) as page:
        await page.emulate_media(forced_colors="active")
        await open_conversation(page, stage)
        for chosen in (page.locator(".conversation.current"), page.get_by_role("button", name="Queue")):
            await expect(chosen).to_have_css("outline-style", "solid")


async def test_copied_text_is_what_was_written(stage: Stage) -> None:
    """R38: without the names of buttons."""
    scenes.start(stage)
    scenes.reply(stage, "It is **40 t**.\n\n```\nload()\n```")
    scenes.finish(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.locator(".reply-tools")).to_be_visible()
        await page.evaluate("getSelection().selectAllChildren(document.querySelector('.run-body'))")
        copied = await page.evaluate("getSelection().toString()")
    assert copied.split() == ["It", "is", "40", "t.", "load()"]
