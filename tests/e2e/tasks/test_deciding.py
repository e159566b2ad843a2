"""Approvals: on a phone, edited, rejected both ways, several at once, remembered, by two, found."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e.tasks.people import BEN, Office, Way, ways
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedCall, ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
DONE = ScriptedReply(text="Done.")
FINGER_PX = 44


def write(path: str, content: str) -> ScriptedReply:
    call = ScriptedCall(name="write_file", arguments={"path": path, "content": content})
    return ScriptedReply(tool_calls=(call,))


async def careful(office: Office, *replies: ScriptedReply, **settings: str) -> str:
    """Return a conversation whose calls two people approve."""
    async with office.http() as http:
        body = {"approvals": {"approvers": 2}, "tools": {"enabled": True}}
        assistant = (await http.post("/context/assistants", json=body)).json()["id"]
    return await office.conversation(*replies, assistant=assistant, **settings)


@ways()
async def test_a_long_command_is_approved_without_scrolling(office: Office, way: Way) -> None:
    """Task 3: the buttons are on the screen, on a phone large enough for a finger."""
    script = "\n".join(f"echo line {number}" for number in range(80))
    conversation = await office.conversation(bash(script), DONE)
    async with office.at(conversation, way) as me:
        await me.ask("Count the lines.")
        button = me.button("approval.approve", me.card)
        await expect(button).to_be_in_viewport(ratio=1)
        for one in await me.card.locator(".approval-actions button").all():
            await expect(one).to_be_in_viewport(ratio=1)
        box = await button.bounding_box()
        assert box is not None and box["height"] >= (FINGER_PX if way.width == 390 else 0)
        await me.press(button)
        await me.ended()
        await expect(me.page.get_by_text("Done.")).to_be_visible()


@ways()
async def test_a_write_is_edited_before_it_happens(office: Office, way: Way) -> None:
    """Task 4: the file has the edited text, and the page says that it was edited."""
    conversation = await office.conversation(write("plan.md", "one\ntwo\n"), DONE)
    async with office.at(conversation, way) as me:
        await me.ask("Write the plan.")
        await expect(me.card).to_be_visible()
        if way.keys:
            await me.card.focus()
            await me.page.keyboard.press("e")
        else:
            await me.press(me.button("app.edit", me.card))
        content = me.card.get_by_role("textbox", name="content")
        await expect(content).to_be_focused()
        await me.write(content, "one\nthree\n")
        await expect(me.card.locator(".diff")).to_contain_text("three")
        if way.keys:
            await me.page.keyboard.press("Escape")
            await me.card.focus()
            await me.page.keyboard.press("a")
        else:
            await me.press(me.button("approval.approve", me.card))
        await me.ended()
        decided = me.page.get_by_role("group", name=me.t("approval.decided"))
        await expect(decided).to_contain_text(me.t("approval.edited"))
    async with office.http() as http:
        found = await http.get(f"/context/conversations/{conversation}/files/plan.md")
    assert found.text == "one\nthree\n"


@ways()
async def test_a_rejection_with_a_reason_lets_the_agent_continue(office: Office, way: Way) -> None:
    """Task 5: the model reads the reason."""
    model = office.play(bash("rm -rf build"), ScriptedReply(text="I keep it."))
    conversation = await office.conversation(model=model)
    async with office.at(conversation, way) as me:
        await me.ask("Clean up.")
        await me.press(me.button("approval.addReason", me.card))
        await me.write(me.card.get_by_role("textbox"), "It is still needed.")
        tell = me.card.get_by_role("button", name=me.t("approval.reject.feedback"))
        await expect(tell).to_contain_text(me.t("approval.then.continues"))
        await me.press(tell)
        await me.ended()
        await expect(me.page.get_by_text("I keep it.")).to_be_visible()
    assert "It is still needed." in str(office.requests(model)[1]["messages"][-1])


@ways()
async def test_a_rejection_that_stops_says_what_will_not_run(office: Office, way: Way) -> None:
    """Task 6: both calls are named before the decision; neither runs, and the model is not asked again."""
    calls = (
        ScriptedCall(name="bash", arguments={"command": "touch one"}),
        ScriptedCall(name="write_file", arguments={"path": "two", "content": "2"}),
    )
    conversation = await office.conversation(ScriptedReply(tool_calls=calls))
    async with office.at(conversation, way) as me:
        await me.ask("Make two files.")
        stop = me.card.get_by_role("button", name=me.t("approval.reject.abort"))
        await expect(stop).to_contain_text(me.t("approval.then.abort", calls="bash, write_file"))
        await me.press(stop)
        await me.ended("rejected")
        decided = me.page.get_by_role("group", name=me.t("approval.decided"))
        await expect(decided).to_contain_text(me.t("approval.outcome.rejected"))
    async with office.http() as http:
        assert (await http.get(f"/context/conversations/{conversation}/files")).json()["items"] == []


@pytest.mark.parametrize("then", ["feedback", "abort"])
@ways()
async def test_three_of_four_calls_are_approved(office: Office, way: Way, then: str) -> None:
    """Task 7: the three run if the agent continues, and none of the four if the run stops."""
    commands = [f"echo {number} >> tally; echo {number}" for number in range(4)]
    conversation = await office.conversation(bash(*commands), ScriptedReply(text="Three ran."))
    async with office.at(conversation, way) as me:
        await me.ask("Run four.")
        items = me.card.locator(".approval-item")
        await expect(items).to_have_count(4)
        for number in range(4):
            choice = "approval.reject" if number == 2 else "approval.approve"
            await me.press(me.button(choice, items.nth(number)))
        button = me.card.get_by_role("button", name=me.t(f"approval.reject.{then}"))
        await expect(button).to_contain_text(me.t(f"approval.then.{then}", calls="bash"))
        await me.press(button)
        await me.ended("completed" if then == "feedback" else "rejected")
    async with office.http() as http:
        tally = await http.get(f"/context/conversations/{conversation}/files/tally")
    ran = sorted(tally.text.split()) if tally.status_code == 200 else []
    assert ran == (["0", "1", "3"] if then == "feedback" else [])


@ways()
async def test_a_beginning_of_commands_is_allowed_on_the_card_and_withdrawn_under_rules(
    office: Office, way: Way
) -> None:
    """Task 8: the next command like it runs without a request, and after the withdrawal it asks again."""
    conversation = await office.conversation(
        bash("git status --short"),
        bash("git status --long"),
        ScriptedReply(text="Both ran."),
        bash("git status"),
        ScriptedReply(text="Asked again."),
    )
    async with office.at(conversation, way) as me:
        await me.ask("Look twice.")
        await me.choose(me.named("approval.remember", me.card), "conversation begins")
        await expect(me.card).to_contain_text(me.t("approval.covers.begins", value="git status"))
        await me.press(me.button("approval.approve", me.card))
        await expect(me.page.get_by_text("Both ran.")).to_be_visible()
        assert len(await office.events(conversation, "approval.requested")) == 1

        await me.view("rules.title")
        remembered = me.page.get_by_role("region", name=me.t("rules.remembered"))
        rule = remembered.get_by_role("listitem").filter(has_text="git status")
        await me.press(rule.get_by_role("button"))
        await expect(rule).to_have_count(0)

        await me.page.goto(f"{me.url}/#/c/{conversation}")
        await me.ask("And again.")
        await me.press(me.button("approval.approve", me.card))
        await expect(me.page.get_by_text("Asked again.")).to_be_visible()


@ways()
async def test_the_second_of_two_people_sees_what_the_first_one_edited(office: Office, way: Way) -> None:
    """Task 9: as a difference; what runs is what both approved."""
    conversation = await careful(office, write("load.md", "40 t\n"), DONE)
    async with office.at(conversation, way) as first, office.person(way, BEN) as second:
        await first.ask("Write the load.")
        await first.press(first.button("app.edit", first.card))
        await first.write(first.card.get_by_role("textbox", name="content"), "32 t\n")
        await first.press(first.button("approval.approve", first.card))
        await expect(first.card).to_contain_text(first.t("approval.first", user="ann"))
        await expect(first.button("approval.approve", first.card)).to_be_disabled()

        await second.view("inbox.title")
        item = second.page.locator(".inbox-item").filter(has_text="load.md")
        await expect(item).to_contain_text(second.t("approval.first", user="ann"))
        changes = item.locator(".approval-changes")
        await expect(changes).to_contain_text("40 t")
        await expect(changes).to_contain_text("32 t")
        await second.press(second.button("approval.approve", item))
        await expect(item).to_have_count(0)
        await first.ended()
    async with office.http() as http:
        found = await http.get(f"/context/conversations/{conversation}/files/load.md")
    assert found.text == "32 t\n"


@ways()
async def test_a_decision_of_last_week_is_found(office: Office, way: Way) -> None:
    """Task 10: by time, text and person, with what it covers; also a first approval that was not followed."""
    title = f"Quay {way.id}"
    conversation = await careful(office, bash("git push"), DONE, title=title)
    async with office.http() as http, office.http(BEN) as ben:
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "Push."})
        asked = await office.event(conversation, "approval.requested")
        address = f"/context/approvals/{asked['approval_id']}"
        call = {"tool_call_id": asked["items"][0]["tool_call_id"], "decision": "approve", "covers": "begins"}
        given = {"digests": [asked["items"][0]["digest"]]}
        first = await http.post(address, json={"decisions": [call], "remember": "conversation", **given})
        assert first.status_code == 202, first.text
        assert (await ben.post(address, json={"all": "reject"})).is_success
        ended = await office.event(conversation, "approval.resolved")
        assert ended["outcome"] == "rejected"
        await office.earlier_decision(conversation, days=12)
    async with office.person(way) as me:
        await me.view("decided.title")
        if way.width < 800:
            await me.press(me.button("app.filters"))
        search = me.page.get_by_role("search")
        rows = me.page.get_by_role("region", name=me.t("decided.list")).locator("tbody tr")
        await me.write(search.get_by_label(me.t("decided.text")), title)
        await me.page.keyboard.press("Enter")
        await expect(rows).to_have_count(2)
        since = search.get_by_label(me.t("decided.since"))
        week = await since.get_by_role("option", name=me.t("decided.days", 7)).get_attribute("value")
        await me.choose(since, week or "")
        await expect(rows).to_have_count(1)
        await me.write(search.get_by_label(me.t("decided.by")), "ann")
        await me.page.keyboard.press("Enter")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text(me.t("decided.first", user="ann"))
        await expect(rows).to_contain_text("git push")
        await expect(rows).not_to_contain_text(me.t("decided.remembered.conversation"))
