"""The rules of the tenant and remembered decisions, and requests that two users approve."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.e2e import scenes
from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

POLICY: dict[str, Any] = {
    "id": "policy",
    "revision": 3,
    "rules": [{"tool": "read_file", "arguments": {}, "action": "auto"}],
    "approvals": {"approvers": 1, "escalation": None},
    "registries": [{"kind": "npm", "url": "https://npm.example/", "hosts": []}],
}
REMEMBERED = {
    "approval_id": "p1",
    "conversation_id": "c1",
    "title": "Crane 1",
    "scope": "conversation",
    "by": "grace",
    "at": "2026-01-02T03:04:05Z",
    "calls": [{"tool": "bash", "arguments": {"command": "rm -rf build"}, "decision": "approve"}],
}


async def test_an_administrator_adds_a_rule_and_withdraws_a_remembered_decision(stage: Stage) -> None:
    """R12, R13: "always ask for `rm`"; a remembered decision shows its user and its calls."""
    stage.resources |= {
        "context/policy": POLICY,
        "PUT context/policy": {**POLICY, "revision": 4},
        "context/remembered": {"items": [REMEMBERED]},
    }
    async with opened(stage.url) as page:
        await open_view(page, "Rules")
        form = page.get_by_role("form", name="Rules for all assistants")
        await form.get_by_role("button", name="Add a rule").click()
        added = form.get_by_role("listitem").nth(1)
        await added.get_by_label("Argument").fill("command")
        await added.get_by_label("Argument").press("Tab")
        await added.get_by_label("Text pattern").fill("*rm *")
        await form.get_by_label("Two people approve each request").check()
        await form.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Rules saved")).to_be_visible()
        remembered = page.get_by_role("region", name="Remembered decisions")
        await expect(remembered.get_by_text("rm -rf build")).to_be_visible()
        await expect(remembered.get_by_text("by grace,")).to_be_visible()
        stage.resources["context/remembered"] = {"items": []}
        await remembered.get_by_role("button", name="Withdraw").click()
        await expect(remembered.get_by_text("No decision is remembered.")).to_be_visible()
    assert json.loads(stage.uploads["context/policy"]) == {
        "rules": [*POLICY["rules"], {"tool": "bash", "arguments": {"command": "*rm *"}, "action": "ask"}],
        "approvals": {"approvers": 2, "escalation": None},
        "registries": POLICY["registries"],
        "revision": 3,
    }


def changed() -> dict[str, Any]:
    """Return a request whose first approver edited path and content of a file, and remembers the decision."""
    request = scenes.pending(1)
    item = scenes.write("b.md", "", "one\nfour\n")
    requested = {"path": "a.md", "content": "one\nthree\n"}
    covers = {"by": "path", "words": "every call of write_file with the path b.md, any content"}
    request["items"] = [{**item, "requested": requested, "digest": "digest-of-edit", "covers": covers}]
    request["terms"] = {"approvers": 2, "escalation": None}
    decision = {"tool_call_id": "w1", "decision": "approve", "arguments": item["arguments"]}
    request["first"] = {"by": "grace", "decisions": [decision], "remember": "conversation"}
    return request


async def shows_everything(card: Locator) -> None:
    """Wait for what will run, the difference to what was requested, for how long it counts, and for what."""
    await expect(card.get_by_text("grace approved this.")).to_be_visible()
    await expect(card.locator(".preview, .approval-item > .diff").get_by_text("four")).to_be_visible()
    changes = card.locator(".approval-changes")
    await expect(changes.locator(".row.removed").get_by_text("three")).to_be_visible()
    await expect(changes.locator(".row.removed").get_by_text("a.md")).to_be_visible()
    await expect(card.get_by_text("In this conversation, until someone withdraws it")).to_be_visible()
    await expect(card.get_by_text("with the path b.md, any content")).to_be_visible()
    await expect(card.get_by_role("button", name="Edit")).to_have_count(0)
    await expect(card.get_by_label("Decide the same way for")).to_have_count(0)


async def replies(stage: Stage, count: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]] | None:
        sent = [frame for frame in stage.received if frame["type"] == "approval.reply"]
        return sent if len(sent) == count else None

    return await eventually(found, WAIT_TIMEOUT_S)


async def test_the_second_user_sees_what_will_run_and_for_how_long(stage: Stage) -> None:
    """R13, P15: the decision names exactly this content."""
    stage.resources["context/approvals"] = {"items": [changed()], "next": None}
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        card = page.locator("[data-request=p1]")
        await shows_everything(card)
        await card.get_by_role("button", name="Approve").click()
        (reply,) = await replies(stage, 1)
    assert (reply["all"], reply["digests"], reply.get("remember")) == ("approve", ["digest-of-edit"], None)


async def test_a_refused_decision_shows_the_content_that_changed(stage: Stage) -> None:
    """R13, P15: the page had the request as it was before the first approval."""
    stage.resources["context/approvals"] = {"items": [scenes.pending(1)], "next": None}
    conflict = {"code": "conflict", "message": "another content", "details": {"approval": changed()}}
    stage.refused["approval.reply"] = conflict
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        card = page.locator("[data-request=p1]")
        await card.get_by_role("button", name="Approve").click()
        await expect(card.get_by_role("alert")).to_contain_text("Another person changed what will run.")
        await shows_everything(card)
        del stage.refused["approval.reply"]
        await card.get_by_role("button", name="Approve").click()
        sent = await replies(stage, 2)
    assert [one["digests"] for one in sent] == [["digest-of-k1"], ["digest-of-edit"]]


async def test_a_remembered_decision_says_what_it_covers(stage: Stage) -> None:
    """P15: before the decision, also after an edit of the path."""
    request = scenes.pending(1)
    covers = {"by": "path", "words": "every call of write_file with the path a.md, any content"}
    request["items"] = [{**scenes.write("a.md", "", "one\n"), "covers": covers}]
    stage.resources["context/approvals"] = {"items": [request], "next": None}
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        card = page.locator("[data-request=p1]")
        await card.get_by_label("Decide the same way for").select_option("run")
        await expect(card.get_by_text("with the path a.md, any content").last).to_be_visible()
        await card.get_by_role("button", name="Edit").click()
        await card.get_by_role("textbox", name="Path").fill("b.md")
        await expect(card.get_by_text("with the path b.md, any content").last).to_be_visible()


@pytest.mark.parametrize(
    ("first", "waits_for"),
    [("ada", "another person\N{RIGHT SINGLE QUOTATION MARK}s approval"), ("grace", "your approval")],
)
async def test_a_run_that_waits_for_the_second_user_does_not_ask_the_first_one(
    stage: Stage, first: str, waits_for: str
) -> None:
    """R13: the first user has nothing left to do, and the page says so."""
    scenes.start(stage)
    scenes.request_approval(stage, scenes.command(1))
    decision = {"tool_call_id": "k1", "decision": "approve"}
    request = scenes.pending(1)
    request["terms"] = {"approvers": 2, "escalation": None}
    request["first"] = {"by": first, "decisions": [decision], "remember": None}
    async with opened(stage.url) as page:
        stage.resources["context/approvals"] = {"items": [request], "next": None}
        await page.goto(f"{stage.url}/#/c/c1")
        await page.reload()
        await expect(page.get_by_text(f"{first} approved this.")).to_be_visible()
        await expect(page.locator(".activity-text")).to_have_text(f"Waiting for {waits_for}")
