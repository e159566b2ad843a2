"""Approvals: on a phone, edited, rejected both ways, several at once, remembered, and by two people."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e.navigating import open_view
from tests.e2e.tasks.people import (
    BEN,
    GERMAN_PHONE,
    PHONE_DARK,
    WIDE,
    WIDE_DARK,
    Look,
    Office,
    ask,
    ended,
    seen,
)
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedCall, ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
DONE = ScriptedReply(text="Done.")


def write(path: str, content: str) -> ScriptedReply:
    call = ScriptedCall(name="write_file", arguments={"path": path, "content": content})
    return ScriptedReply(tool_calls=(call,))


def card(page: Page) -> Locator:
    return page.locator(".approval.pending")


@seen(PHONE_DARK, GERMAN_PHONE)
async def test_a_long_command_is_approved_on_a_phone_without_scrolling(office: Office, look: Look) -> None:
    """Task 3: the buttons are on the screen, and large enough for a finger."""
    script = "\n".join(f"echo line {number}" for number in range(80))
    conversation = await office.conversation(bash(script), DONE)
    approve = {"en-US": "Approve", "de-DE": "Freigeben"}[look.language]
    async with office.at(conversation, look) as page:
        await ask(page, "Count the lines.")
        button = card(page).get_by_role("button", name=approve, exact=True)
        await expect(button).to_be_in_viewport(ratio=1)
        for one in await card(page).locator(".approval-actions button").all():
            await expect(one).to_be_in_viewport(ratio=1)
        box = await button.bounding_box()
        assert box is not None and box["height"] >= 44
        await button.click()
        await ended(page)
        await expect(page.get_by_text("Done.")).to_be_visible()


@seen(WIDE_DARK)
async def test_a_write_is_edited_by_keyboard_before_it_happens(office: Office, look: Look) -> None:
    """Task 4: the file has the edited text, and the page says that it was edited."""
    conversation = await office.conversation(write("plan.md", "one\ntwo\n"), DONE)
    async with office.at(conversation, look) as page:
        await ask(page, "Write the plan.")
        await expect(card(page)).to_be_visible()
        await card(page).focus()
        await page.keyboard.press("e")
        content = card(page).get_by_role("textbox", name="content")
        await expect(content).to_be_focused()
        await page.keyboard.press("Control+a")
        await page.keyboard.type("one\nthree\n")
        await expect(card(page).locator(".diff")).to_contain_text("three")
        await page.keyboard.press("Escape")
        await card(page).focus()
        await page.keyboard.press("a")
        await ended(page)
        await expect(page.get_by_role("group", name="Decided approval request")).to_contain_text("edited")
    async with office.http() as http:
        found = await http.get(f"/context/conversations/{conversation}/files/plan.md")
    assert found.text == "one\nthree\n"


@seen(GERMAN_PHONE)
async def test_a_rejection_with_a_reason_lets_the_agent_continue(office: Office, look: Look) -> None:
    """Task 5: the model reads the reason."""
    model = office.play(bash("rm -rf build"), ScriptedReply(text="I keep it."))
    conversation = await office.conversation(model=model)
    async with office.at(conversation, look) as page:
        await ask(page, "Räume auf.")
        await card(page).get_by_role("button", name="Begründung hinzufügen").click()
        await card(page).get_by_role("textbox", name="Begründung").fill("Das wird noch gebraucht.")
        tell = card(page).get_by_role("button", name="Ablehnen und dem Agenten mitteilen")
        await expect(tell).to_contain_text("Der Lauf geht weiter.")
        await tell.click()
        await ended(page)
        await expect(page.get_by_text("I keep it.")).to_be_visible()
    assert "Das wird noch gebraucht." in str(office.requests(model)[1]["messages"][-1])


@seen(WIDE)
async def test_a_rejection_that_stops_says_what_will_not_run(office: Office, look: Look) -> None:
    """Task 6: both calls are named before the decision; neither runs, and the model is not asked again."""
    calls = (
        ScriptedCall(name="bash", arguments={"command": "touch one"}),
        ScriptedCall(name="write_file", arguments={"path": "two", "content": "2"}),
    )
    conversation = await office.conversation(ScriptedReply(tool_calls=calls))
    async with office.at(conversation, look) as page:
        await ask(page, "Make two files.")
        stop = card(page).get_by_role("button", name="Reject and stop")
        await expect(stop).to_contain_text("The run ends. Does not run: bash, write_file")
        await stop.click()
        await ended(page, "rejected")
        await expect(page.get_by_role("group", name="Decided approval request")).to_contain_text("Rejected")
    async with office.http() as http:
        assert (await http.get(f"/context/conversations/{conversation}/files")).json()["items"] == []


@pytest.mark.parametrize("way", ["Reject and tell the agent", "Reject and stop"])
@seen(WIDE_DARK)
async def test_three_of_four_calls_are_approved(office: Office, look: Look, way: str) -> None:
    """Task 7: the three run if the agent continues, and none of the four if the run stops."""
    commands = [f"echo {number} >> tally; echo {number}" for number in range(4)]
    conversation = await office.conversation(bash(*commands), ScriptedReply(text="Three ran."))
    async with office.at(conversation, look) as page:
        await ask(page, "Run four.")
        items = card(page).locator(".approval-item")
        await expect(items).to_have_count(4)
        for number in range(4):
            choice = "Reject" if number == 2 else "Approve"
            await items.nth(number).get_by_role("button", name=choice, exact=True).click()
        button = card(page).get_by_role("button", name=way)
        words = "Runs: bash" if "tell" in way else "Does not run: bash"
        await expect(button).to_contain_text(words)
        await button.click()
        await ended(page, "completed" if "tell" in way else "rejected")
    async with office.http() as http:
        tally = await http.get(f"/context/conversations/{conversation}/files/tally")
    ran = sorted(tally.text.split()) if tally.status_code == 200 else []
    assert ran == (["0", "1", "3"] if "tell" in way else [])


@seen(WIDE)
async def test_a_beginning_of_commands_is_allowed_on_the_card_and_withdrawn_under_rules(
    office: Office, look: Look
) -> None:
    """Task 8: the next command like it runs without a request, and after the withdrawal it asks again."""
    conversation = await office.conversation(
        bash("git status --short"),
        bash("git status --long"),
        ScriptedReply(text="Both ran."),
        bash("git status"),
        ScriptedReply(text="Asked again."),
    )
    async with office.at(conversation, look) as page:
        await ask(page, "Look twice.")
        scope = card(page).get_by_label("Decide the same way for")
        await scope.select_option("conversation begins")
        await expect(card(page)).to_contain_text("every command that begins with “git status”")
        await card(page).get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("Both ran.")).to_be_visible()
        assert len(await office.events(conversation, "approval.requested")) == 1

        await open_view(page, "Rules")
        remembered = page.get_by_role("region", name="Remembered decisions")
        rule = remembered.get_by_role("listitem").filter(has_text="git status")
        await rule.get_by_role("button", name="Withdraw").click()
        await expect(rule).to_have_count(0)

        await page.goto(f"{office.system.url}/#/c/{conversation}")
        await ask(page, "And again.")
        await card(page).get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("Asked again.")).to_be_visible()


@seen(WIDE_DARK)
async def test_the_second_of_two_people_sees_what_the_first_one_edited(office: Office, look: Look) -> None:
    """Task 9: as a difference; what runs is what both approved."""
    async with office.http() as http:
        careful = {"approvals": {"approvers": 2}, "tools": {"enabled": True}}
        assistant = (await http.post("/context/assistants", json=careful)).json()["id"]
    conversation = await office.conversation(write("load.md", "40 t\n"), DONE, assistant=assistant)
    async with office.at(conversation, look) as first, office.person(look, BEN) as second:
        await ask(first, "Write the load.")
        await card(first).get_by_role("button", name="Edit").click()
        await card(first).get_by_role("textbox", name="content").fill("32 t\n")
        await card(first).get_by_role("button", name="Approve").click()
        await expect(card(first)).to_contain_text("Another person must approve exactly the same.")
        await expect(card(first).get_by_role("button", name="Approve")).to_be_disabled()

        await open_view(second, "Approvals")
        item = second.locator(".inbox-item").filter(has_text="load.md")
        await expect(item).to_contain_text("ann approved this.")
        changes = item.locator(".approval-changes")
        await expect(changes).to_contain_text("40 t")
        await expect(changes).to_contain_text("32 t")
        await item.get_by_role("button", name="Approve").click()
        await expect(item).to_have_count(0)
        await ended(first)
    async with office.http() as http:
        found = await http.get(f"/context/conversations/{conversation}/files/load.md")
    assert found.text == "32 t\n"
