"""The rules of the tenant and remembered decisions, and requests that two users approve."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e import scenes
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
        await page.get_by_role("link", name="Rules").click()
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
        "revision": 3,
    }


async def test_the_second_user_approves_exactly_what_the_first_one_did(stage: Stage) -> None:
    """R13: edited arguments are shown, and are what the second decision contains."""
    request = scenes.pending(1)
    decision = {"tool_call_id": "k1", "decision": "approve", "arguments": {"command": "echo edited"}}
    request["terms"] = {"approvers": 2, "escalation": None}
    request["first"] = {"by": "grace", "decisions": [decision], "remember": None}
    stage.resources["context/approvals"] = {"items": [request], "next": None}
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Approvals").click()
        card = page.locator("[data-request=p1]")
        await expect(card.get_by_text("grace approved this.")).to_be_visible()
        await expect(card.get_by_text("echo edited")).to_be_visible()
        await card.get_by_role("button", name="Approve").click()

        def replied() -> dict[str, Any] | None:
            return next((one for one in stage.received if one["type"] == "approval.reply"), None)

        reply = await eventually(replied, WAIT_TIMEOUT_S)
    assert (reply["decisions"], reply["digests"]) == ([decision], ["digest-of-k1"])


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
