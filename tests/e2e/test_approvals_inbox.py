"""The inbox: the approval requests of all conversations."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

PATH = "context/approvals"


def put(stage: Stage, *numbers: int) -> None:
    """Let these requests be open."""
    stage.resources[PATH] = {"items": [scenes.pending(number) for number in numbers], "next": None}


async def replies(stage: Stage, count: int) -> list[dict[str, Any]]:
    """Wait for decisions of the page."""

    def found() -> list[dict[str, Any]] | None:
        sent = [frame for frame in stage.received if frame["type"] == "approval.reply"]
        return sent if len(sent) == count else None

    return await eventually(found, WAIT_TIMEOUT_S)


async def icon(page: Page) -> str:
    return str(await page.locator("link[rel=icon]").get_attribute("href"))


async def test_requests_of_other_conversations_are_counted_as_they_arrive(stage: Stage) -> None:
    """R13, R38: in the title, in the icon and beside the link, even while another conversation is open."""
    put(stage)
    async with opened(stage.url) as page:
        await expect(page.get_by_role("link", name="Approvals")).to_be_visible()
        before = await icon(page)
        put(stage, 1, 2)
        await stage.send({"type": "approvals.changed"})
        await expect(page.get_by_role("link", name="Approvals 2 requests wait")).to_be_visible()
        await expect(page).to_have_title("(2) Banksman")
        assert await icon(page) != before
        put(stage)
        await stage.send({"type": "approvals.changed"})
        await expect(page).to_have_title("Banksman")
        assert await icon(page) == before


async def test_a_request_states_who_made_it_and_is_decided_by_keyboard(stage: Stage) -> None:
    """R13, R38: J moves to the next card and A approves its exact calls."""
    put(stage, 1, 2)
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        second = page.locator("[data-request=p2]")
        await expect(second.get_by_text("by grace,")).to_be_visible()
        await expect(second.get_by_role("link", name="Crane 2")).to_have_attribute("href", "#/c/c2")
        await expect(second.get_by_text("expires in 2 days")).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("a")
        (reply,) = await replies(stage, 1)
        await expect(second).to_have_count(0)
        await expect(page).to_have_title("(1) Approvals · Banksman")
    assert (reply["approval_id"], reply["all"], reply["digests"]) == ("p2", "approve", ["digest-of-k2"])


async def test_several_requests_are_decided_at_once_with_the_calls_that_were_shown(stage: Stage) -> None:
    """R13, R38: by one click, each with the digests of its calls."""
    put(stage, 1, 2, 3)
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        for title in ("Crane 1", "Crane 3"):
            await page.get_by_label(f"Choose {title}").check()
        await page.get_by_role("button", name="Reject 2 requests").click()
        sent = await replies(stage, 2)
        await expect(page.locator(".inbox-item")).to_have_count(1)
    assert [(frame["approval_id"], frame["all"]) for frame in sent] == [("p1", "reject"), ("p3", "reject")]
    assert [frame["digests"] for frame in sent] == [["digest-of-k1"], ["digest-of-k3"]]


async def test_a_link_shows_its_request_after_sign_in(stage: Stage) -> None:
    """R13, R34: as a message in a chat names it; without a token it shows nothing."""
    put(stage, 1, 2)
    stage.token = "right"
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/approvals/p2/signed")
        await page.get_by_label("Key").fill("right")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".inbox-item")).to_have_count(1)
        await expect(page.get_by_role("main").get_by_role("link", name="Crane 2")).to_be_visible()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("This request was decided or has expired.")).to_be_visible()
        (reply,) = await replies(stage, 1)
    assert (reply["approval_id"], reply["link"]) == ("p2", "signed")


async def test_not_now_sets_a_request_aside_and_rejects_nothing(stage: Stage) -> None:
    """R13: the request leaves the inbox on every device of the user, and an escalation returns it."""
    put(stage, 1)
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        await page.get_by_role("button", name="Not now").wait_for()
        stage.resources[PATH] = {"items": [{**scenes.pending(1), "for_you": False}], "next": None}
        await page.get_by_role("button", name="Not now").click()
        await eventually(lambda: "context/approvals/p1/aside" in stage.uploads, WAIT_TIMEOUT_S)
        await expect(page.get_by_text("Nothing waits for your approval.")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="Set aside, or waiting for others")).to_be_visible()
        await expect(page).to_have_title("Approvals · Banksman")
        stage.resources[PATH] = {"items": [{**scenes.pending(1), "escalated": True}], "next": None}
        await stage.send({"type": "approvals.changed"})
        await expect(page.get_by_text("escalated")).to_be_visible()
        await expect(page).to_have_title("(1) Approvals · Banksman")
    assert [frame for frame in stage.received if frame["type"] == "approval.reply"] == []


async def test_the_list_of_conversations_shows_a_decision_at_once(stage: Stage) -> None:
    """R13, R38: a request decided in the inbox stops being listed as waiting before the list is polled."""
    put(stage, 1)
    listed = {"conversation_id": "c1", "title": "Crane 1", "status": "awaiting_approval"}
    stage.resources["context/conversations"] = {"items": [listed]}
    async with opened(stage.url) as page:
        await page.add_init_script("window.setInterval = () => 0")
        await page.goto(f"{stage.url}/#/approvals")
        await page.reload()
        await expect(page.get_by_text("Waiting for you")).to_be_visible()
        stage.resources["context/conversations"] = {"items": [{**listed, "status": "running"}]}
        await page.locator(".inbox-item").get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("Waiting for you")).to_have_count(0)
