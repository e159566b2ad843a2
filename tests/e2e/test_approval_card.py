"""The approval card: what a rejection does, what a decision covers, and what stays in view."""

from __future__ import annotations

import json
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


async def shown(page: Page, stage: Stage, *items: dict[str, Any], **fields: Any) -> None:
    """Show one request in the inbox."""
    stage.resources["context/approvals"] = {
        "items": [{**scenes.pending(1), "items": list(items), **fields}],
        "next": None,
    }
    await page.goto(f"{stage.url}/#/approvals")
    await page.reload()
    await expect(page.locator(".approval.pending")).to_be_visible()


async def reply(stage: Stage) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "approval.reply"), None)

    return await eventually(found, WAIT_TIMEOUT_S)


def status() -> dict[str, Any]:
    words = "every call of bash with exactly this command"
    item = {**scenes.command(1), "arguments": {"command": "git status -s"}, "begins": "git status"}
    return {**item, "covers": {"by": "command", "words": words}}


@pytest.mark.parametrize(
    ("policy", "labels"),
    [
        ("abort", ["Reject and stop", "Reject and tell the agent"]),
        ("feedback", ["Reject and tell the agent", "Reject and stop"]),
    ],
)
async def test_a_rejection_says_what_it_does_and_the_policy_decides_which_is_first(
    stage: Stage, policy: str, labels: list[str]
) -> None:
    """R13: the key R is the first one."""
    async with opened(stage.url) as page:
        await shown(page, stage, scenes.command(1), on_reject=policy)
        card = page.locator(".approval.pending")
        found = await card.locator(".consequence strong").all_inner_texts()
        assert [text.removesuffix("R").strip() for text in found] == labels
        await expect(card.get_by_role("button", name="Reject and stop")).to_contain_text("Does not run: bash")
        await card.focus()
        await page.keyboard.press("r")
        decision = await reply(stage)
    assert (decision["all"], decision["on_reject"]) == ("reject", policy)


async def test_a_rejection_of_one_call_says_what_happens_to_the_other(stage: Stage) -> None:
    """R13: with the run, the approved call does not run either."""
    async with opened(stage.url) as page:
        await shown(page, stage, scenes.command(1), scenes.write("a.md", "", "one\n"))
        card = page.locator(".approval.pending")
        await card.get_by_role("group", name="Decide bash").get_by_role("button", name="Reject").click()
        await expect(card.get_by_role("button", name="1 undecided")).to_be_disabled()
        write = card.get_by_role("group", name="Decide write_file")
        await write.get_by_role("button", name="Approve").click()
        stop = card.get_by_role("button", name="Reject and stop")
        await expect(stop).to_contain_text("Does not run: bash, write_file")
        await card.get_by_role("button", name="The run continues. Runs: write_file").click()
        decision = await reply(stage)
    assert decision["on_reject"] == "feedback"
    assert [one["decision"] for one in decision["decisions"]] == ["reject", "approve"]


async def test_a_decision_covers_the_commands_that_begin_with_the_same_words(stage: Stage) -> None:
    """R13, P15: the words are those of the request; an edit leaves only what it covers."""
    async with opened(stage.url) as page:
        await shown(page, stage, status())
        card = page.locator(".approval.pending")
        choice = card.get_by_label("Decide the same way for")
        await choice.select_option("run begins")
        covered = card.locator(".approval-covers")
        await expect(covered).to_contain_text("every command that begins with “git status”")
        await expect(covered.get_by_role("link", name="Rules")).to_have_attribute("href", "#/rules")
        await card.get_by_role("button", name="Edit").click()
        await card.get_by_role("textbox", name="Command").fill("git push")
        await expect(choice).to_have_value("")
        await card.get_by_role("button", name="Undo edit").click()
        await choice.select_option("conversation begins")
        await card.get_by_role("button", name="Approve").click()
        decision = await reply(stage)
    assert decision["remember"] == "conversation"
    expected = {"tool_call_id": "k1", "decision": "approve", "covers": "begins"}
    assert decision["decisions"] == [expected]


async def test_not_again_in_this_run_covers_the_whole_tool(stage: Stage) -> None:
    """R13: a rejection too."""
    async with opened(stage.url) as page:
        await shown(page, stage, scenes.command(1))
        card = page.locator(".approval.pending")
        await card.get_by_label("Decide the same way for").select_option("run tool")
        await expect(card.get_by_text("every call of bash, whatever it does").last).to_be_visible()
        await card.get_by_role("button", name="Reject and tell the agent").click()
        decision = await reply(stage)
    assert decision["remember"] == "run"
    expected = {"tool_call_id": "k1", "decision": "reject", "covers": "tool"}
    assert decision["decisions"] == [expected]


async def test_an_administrator_makes_a_rule_for_everyone_from_a_request(stage: Stage) -> None:
    """R12, R13: the rule stands before those that ask, and behind those that deny."""
    deny = {"tool": "bash", "arguments": {"command": "git push*"}, "action": "deny"}
    ask = {"tool": "bash", "arguments": {}, "action": "ask"}
    registries = [{"kind": "npm", "url": "https://npm.example/"}]
    policy = {"id": "policy", "revision": 3, "rules": [deny, ask], "approvals": {"approvers": 1}}
    policy["registries"] = registries
    stage.resources |= {"context/policy": policy, "PUT context/policy": policy}
    async with opened(stage.url) as page:
        await shown(page, stage, status())
        card = page.locator(".approval.pending")
        await card.get_by_label("Decide the same way for").select_option("everyone")
        await card.get_by_role("button", name="Approve").click()
        decision = await reply(stage)
        await eventually(lambda: "context/policy" in stage.uploads, WAIT_TIMEOUT_S)
    assert (decision["all"], decision.get("remember")) == ("approve", None)
    uploaded = json.loads(stage.uploads["context/policy"])
    assert uploaded["registries"] == registries
    rules = uploaded["rules"]
    words = [rule["arguments"].get("command") for rule in rules]
    assert words == ["git push*", "git status", "git status -*", None]
    assert [rule["action"] for rule in rules] == ["deny", "auto", "auto", "ask"]


async def test_the_buttons_of_a_long_request_stay_in_view_on_a_phone(stage: Stage) -> None:
    """R13, R38: the content scrolls inside the card."""
    text = "".join(f"line {number}\n" for number in range(400))
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 390, "height": 844})
        await shown(page, stage, scenes.write("a.md", "", text))
        card = page.locator(".approval.pending")
        for name in ("Approve", "Reject and stop", "Reject and tell the agent"):
            await expect(card.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
        await expect(card.get_by_text("line 399", exact=True)).not_to_be_in_viewport()
        await card.get_by_text("line 399", exact=True).scroll_into_view_if_needed()
        await expect(card.get_by_role("button", name="Approve")).to_be_in_viewport(ratio=1)


async def test_focus_moves_no_button_and_tab_leaves_the_card(stage: Stage) -> None:
    """R38: the hint of a key appears where the space for it was."""
    async with opened(stage.url) as page:
        await shown(page, stage, scenes.command(1))
        card = page.locator(".approval.pending")
        button = card.get_by_role("button", name="Reject and tell the agent")
        before = await button.bounding_box()
        await card.focus()
        await expect(card.locator("kbd", has_text="A")).to_be_visible()
        assert await button.bounding_box() == before
        await button.focus()
        await page.keyboard.press("Tab")
        await expect(card.locator(":focus")).to_have_count(0)


async def test_every_digit_of_a_number_is_shown_and_an_edit_cannot_round_it(stage: Stage) -> None:
    """R13, P15: a browser reads 9007199254740993 as 9007199254740992."""
    item = {**scenes.command(1), "name": "pay", "arguments": {"amount": 9007199254740993}}
    text = '{\n  "amount": 9007199254740993\n}'
    async with opened(stage.url) as page:
        await shown(page, stage, {**item, "exact": text, "preview": {"kind": "text", "text": text}})
        card = page.locator(".approval.pending")
        await expect(card.locator(".exact pre")).to_contain_text("9007199254740993")
        await expect(card.get_by_role("button", name="Edit")).to_have_count(0)
        await expect(card.get_by_text("9007199254740992")).to_have_count(0)
