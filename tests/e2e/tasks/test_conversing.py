"""Conversations: queue, steer, stop; versions; thinking; drafts, reloads, broken connections; costs."""

from __future__ import annotations

import os
import signal
from functools import partial

import httpx
import pytest
from playwright.async_api import FilePayload, expect

from banksman.contracts.ids import new_id
from tests.e2e.tasks.people import ANN, PHONE, WIDE, Office, Person, Way, ways
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import kill
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
WORDS = " ".join(f"word{number}" for number in range(40)) + " end."
NOTICED_MS = 6_000
"""Five seconds, and one for a busy machine."""


def halted(gate: str, **more: object) -> ScriptedReply:
    """Return a reply that waits at a gate after its first words."""
    return ScriptedReply(text=WORDS, gate=Gate(name=gate, after_events=8), **more)  # type: ignore[arg-type]


async def shows_beginning(me: Person) -> None:
    await expect(me.page.locator(".turn.assistant").last).to_contain_text("word3")


@ways()
async def test_a_message_is_queued_another_one_steers_and_the_run_is_stopped(
    office: Office, way: Way
) -> None:
    """Task 11: the agent reads the steering message before its next step, the queued one after the run."""
    first, last = new_id("g"), new_id("g")
    looking = ScriptedCall(name="list_files", arguments={})
    model = office.play(
        ScriptedReply(tool_calls=(looking,), gate=Gate(name=first)),
        ScriptedReply(text="In metres."),
        halted(last),
    )
    conversation = await office.conversation(model=model)
    async with office.at(conversation, way) as me:
        await me.ask("How high is it?")
        await expect(me.button("composer.queue")).to_be_visible()
        await me.ask("And how wide?")
        await expect(me.page.locator("[data-status=queued]")).to_have_count(1)
        await me.press(me.button("composer.steer"))
        await me.ask("Answer in metres.")
        # A message that the agent has not accepted yet is shown as well.
        await expect(me.page.locator(".bubble:not(.sending)", has_text="Answer in metres.")).to_be_visible()
        office.model.open_gate(first)
        await expect(me.page.get_by_text("In metres.", exact=True)).to_be_visible()
        await expect(me.page.get_by_text("word3")).to_be_visible()
        await me.press(me.button("composer.stop"))
        await me.ended("cancelled")
        await me.ended()
    asked = [str(one["messages"][-1]["content"]) for one in office.requests(model)]
    assert ["Answer in metres." in asked[1], "And how wide?" in asked[2]] == [True, True]
    office.model.open_gate(last)


@ways()
async def test_a_message_is_edited_and_a_reply_is_asked_for_again_and_every_version_stays(
    office: Office, way: Way
) -> None:
    """Tasks 12 and 13."""
    replies = [ScriptedReply(text=f"Reply {number}.") for number in (1, 2, 3)]
    conversation = await office.conversation(model=office.play(*replies, by="count"))
    async with office.at(conversation, way) as me:
        await me.ask("One")
        await expect(me.page.get_by_text("Reply 1.", exact=True)).to_be_visible()
        await me.press(me.button("versions.again"))
        await expect(me.page.get_by_text("Reply 2.", exact=True)).to_be_visible()
        await expect(me.page.get_by_text("2/2")).to_be_visible()
        await me.press(me.button("versions.previous"))
        await expect(me.page.get_by_text("Reply 1.", exact=True)).to_be_visible()
        await expect(me.page.get_by_text("Reply 2.", exact=True)).to_be_hidden()

        await me.press(me.button("versions.edit"))
        editor = me.page.get_by_role("textbox", name=me.t("versions.edit"))
        await expect(editor).to_be_focused()
        await me.write(editor, "One, edited")
        await me.page.keyboard.press("Control+Enter")
        await expect(me.page.get_by_text("Reply 3.", exact=True)).to_be_visible()
        await expect(me.page.locator(".bubble")).to_have_text("One, edited")
        await me.page.reload()
        await expect(me.page.get_by_text("3/3")).to_be_visible()


@ways()
async def test_a_conversation_goes_on_from_an_earlier_reply_and_the_later_one_is_found_again(
    office: Office, way: Way
) -> None:
    """Task 14."""
    replies = [ScriptedReply(text=f"Reply {number}.") for number in (1, 2, 3)]
    model = office.play(*replies, by="count")
    conversation = await office.conversation(model=model)
    async with office.at(conversation, way) as me:
        for number, text in enumerate(("One", "Two"), 1):
            await me.ask(text)
            await expect(me.page.get_by_text(f"Reply {number}.", exact=True)).to_be_visible()
        await me.press(me.button("versions.continue").first)
        await expect(me.page.get_by_text(me.t("versions.continuing"))).to_be_visible()
        await me.ask("Other two")
        await expect(me.page.get_by_text("Reply 3.", exact=True)).to_be_visible()
        await expect(me.page.get_by_text("Reply 2.", exact=True)).to_be_hidden()
        assert [one["content"] for one in office.requests(model)[2]["messages"][-2:]] == [
            "Reply 1.",
            "Other two",
        ]
        await me.press(me.button("versions.previous"))
        await expect(me.page.get_by_text("Reply 2.", exact=True)).to_be_visible()
        await expect(me.page.get_by_text("Reply 3.", exact=True)).to_be_hidden()


@ways()
async def test_the_thinking_of_a_finished_reply_is_read(office: Office, way: Way) -> None:
    """Task 15: folded, with its time, also after a reload."""
    reply = ScriptedReply(text="It is 40 t.", reasoning="The chart names 40 t.")
    conversation = await office.conversation(reply)
    async with office.at(conversation, way) as me:
        await me.ask("How heavy?")
        await me.ended()
        await me.page.reload()
        thought = me.page.locator(".reasoning summary")
        await expect(thought).to_have_text(me.t("timeline.thought", duration=me.t("duration.s", n=1)))
        await expect(me.page.get_by_text("The chart names 40 t.")).to_be_hidden()
        await me.press(thought)
        await expect(me.page.get_by_text("The chart names 40 t.")).to_be_visible()


@ways()
async def test_a_reply_goes_on_after_a_reload_and_in_a_second_tab(office: Office, way: Way) -> None:
    """Task 16: both show the text so far, then all of it, once."""
    gate = new_id("g")
    conversation = await office.conversation(halted(gate))
    async with office.http() as http:
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "Count."})
    async with office.at(conversation, way) as me, office.at(conversation, WIDE) as second:
        for tab in (me, second):
            await shows_beginning(tab)
            await tab.page.reload()
            await shows_beginning(tab)
        office.model.open_gate(gate)
        for tab in (me, second):
            await expect(tab.page.locator(".turn.assistant .prose")).to_have_text(WORDS)


@ways()
async def test_a_draft_stays_in_its_conversation_through_a_reload_and_a_new_sign_in(
    office: Office, way: Way
) -> None:
    """Task 17: with its files and the model that was chosen; no other conversation shows it."""
    model = office.play(ScriptedReply(text="It was kept."))
    one, two = [
        await office.conversation(ScriptedReply(text="Unused."), title=f"Draft {number} {way.id}")
        for number in (1, 2)
    ]
    file: FilePayload = {"name": "load.csv", "mimeType": "text/csv", "buffer": b"40"}
    async with office.at(one, way) as me:
        await me.write(me.composer, "half a thought")
        await me.pick(me.button("attach.add"), [file])
        attached = me.page.locator(".attached-file")
        await expect(attached).to_have_count(1)
        await choose_model(me, model)
        await me.command(f"Draft 2 {way.id}")
        await expect(me.page.get_by_role("heading", name="Draft 2", level=1)).to_be_visible()
        await expect(me.composer).to_have_value("")
        await expect(attached).to_have_count(0)
        await me.page.evaluate("localStorage.setItem('banksman.token', 'expired')")
        await me.page.reload()
        await me.write(me.named("app.key"), ANN)
        await me.press(me.button("login.submit"))
        await expect(me.composer).to_be_visible()
        await me.command(f"Draft 1 {way.id}")
        await expect(me.composer).to_have_value("half a thought")
        await expect(attached).to_have_count(1)
        await me.reach(me.composer)
        await me.page.keyboard.press("End")
        await me.page.keyboard.press("Enter")
        await expect(me.page.get_by_text("It was kept.")).to_be_visible()
        await expect(me.composer).to_have_value("")
    assert "half a thought" in str(office.requests(model)[0]["messages"][-1])
    assert two != one


async def choose_model(me: Person, model: str) -> None:
    await me.press(me.page.get_by_role("button", name=me.t("models.choose")))
    await me.write(me.dialog.get_by_role("searchbox"), model)
    await me.press(me.dialog.get_by_role("button", name=model))


@ways()
async def test_a_reply_survives_a_gateway_that_is_killed_or_frozen_and_a_missing_network(
    office: Office, way: Way
) -> None:
    """Task 18: the page says so soon, keeps the text, and sends what was written meanwhile once."""
    gates = [new_id("g") for _ in range(2)]
    model = office.play(*[halted(gate) for gate in gates], ScriptedReply(text="Third."))
    conversation = await office.conversation(model=model)
    async with office.at(conversation, way) as me:
        lost = me.page.get_by_text(me.t("connection.offlineNow").partition(". ")[0])
        await me.ask("Count.")
        await shows_beginning(me)
        kill(office.system.service_pids("gateway")[-1])
        await expect(lost).to_be_visible()
        await expect(lost).to_be_hidden()
        await shows_beginning(me)
        office.model.open_gate(gates[0])
        await expect(me.page.locator(".turn.assistant .prose")).to_have_text(WORDS)

        await me.ask("Again.")
        await expect(me.page.locator(".turn.assistant").nth(1)).to_contain_text("word3")
        frozen = office.system.service_pids("gateway")[-1]
        os.kill(frozen, signal.SIGSTOP)
        try:
            await expect(lost).to_be_visible(timeout=NOTICED_MS)
        finally:
            os.kill(frozen, signal.SIGCONT)
        office.model.open_gate(gates[1])
        await expect(me.page.locator(".turn.assistant .prose").nth(1)).to_have_text(WORDS)
        await me.ended(count=2)

        await me.page.clock.install()
        await me.page.context.set_offline(True)
        await me.ask("Third?")
        await expect(me.page.locator(".bubble.sending, .bubble.failed")).to_be_visible()
        await me.page.clock.fast_forward("01:00")
        await expect(lost).to_be_visible()
        await me.page.context.set_offline(False)
        await expect(me.page.get_by_text("Third.", exact=True)).to_be_visible()
        await expect(me.page.locator(".bubble").filter(has_text="Third?")).to_have_count(1)
    assert len(await office.events(conversation, "run.started")) == 3


@ways(WIDE, PHONE)
async def test_a_card_of_a_frozen_gateway_is_decided_when_it_is_back(office: Office, way: Way) -> None:
    """R36: the decision that a person made meanwhile is sent once, and the command runs once."""
    call = ScriptedCall(name="bash", arguments={"command": "echo once >> tally"})
    conversation = await office.conversation(ScriptedReply(tool_calls=(call,)), ScriptedReply(text="Ran."))
    async with office.at(conversation, way) as me:
        await me.ask("Run it.")
        approve = me.button("approval.approve", me.card)
        await expect(approve).to_be_visible()
        frozen = office.system.service_pids("gateway")[-1]
        os.kill(frozen, signal.SIGSTOP)
        try:
            await expect(me.page.get_by_text(me.t("connection.offlineNow").partition(". ")[0])).to_be_visible(
                timeout=NOTICED_MS
            )
        finally:
            os.kill(frozen, signal.SIGCONT)
        await expect(approve).to_be_enabled()
        await me.press(approve)
        await expect(me.page.get_by_text("Ran.", exact=True)).to_be_visible()
    async with office.http() as http:
        found = await http.get(f"/context/conversations/{conversation}/files/tally")
    assert found.text == "once\n"


@ways()
async def test_the_cost_of_a_run_of_the_conversation_and_of_the_month_is_found(
    office: Office, way: Way
) -> None:
    """Task 19: with the step that caused it."""
    usage = ScriptedUsage(input_tokens=4_000, output_tokens=500)
    model = office.play(ScriptedReply(text="Dear.", usage=usage), name="dear", at_end="repeat")
    conversation = await office.conversation(model=model)
    async with office.http() as http:
        before = await _spent(http)
    async with office.at(conversation, way) as me:
        for count in (1, 2):
            await me.ask("How much?")
            await me.ended(count=count)
        await expect(me.page.locator(".header-title")).to_contain_text("9")
        await me.press(me.page.get_by_role("link", name=me.t("run.open")).last)
        run = me.page.get_by_role("region", name=me.t("run.title"), exact=True)
        cost = {"en": "$4.50", "de": "4,50"}[way.language[:2]]
        await expect(run).to_contain_text(cost)
        await me.press(me.button("run.byCost"))
        await expect(me.page.locator(".step").first).to_contain_text(cost)
        async with office.http() as http:
            # Agents report what they used together.
            await eventually(partial(_counted, http, before + 9.0), WAIT_TIMEOUT_S)
        await me.view("settings.title")
        month = {"en": f"${before + 9:.2f}", "de": f"{before + 9:.2f}".replace(".", ",")}[way.language[:2]]
        await expect(me.page.get_by_text(me.t("settings.monthText"))).to_contain_text(month)


@ways()
async def test_two_runs_are_compared(office: Office, way: Way) -> None:
    """Task 20: the second version of a reply with the first."""
    usage = [ScriptedUsage(input_tokens=tokens, output_tokens=50) for tokens in (4_000, 1_000)]
    replies = [ScriptedReply(text=f"Version {at}.", usage=one) for at, one in enumerate(usage, 1)]
    conversation = await office.conversation(model=office.play(*replies, by="count"))
    async with office.at(conversation, way) as me:
        await me.ask("Explain.")
        await expect(me.page.get_by_text("Version 1.")).to_be_visible()
        await me.press(me.button("versions.again"))
        await expect(me.page.get_by_text("Version 2.")).to_be_visible()
        await me.ended()
        await me.press(me.page.get_by_role("link", name=me.t("run.open")).last)
        other = me.named("run.compare")
        value = await other.locator("option").nth(1).get_attribute("value")
        await me.choose(other, value or "")
        title = me.page.get_by_role("rowheader", name=me.t("run.tokensIn"), exact=True)
        row = me.page.get_by_role("row").filter(has=title)
        await expect(row).to_contain_text("300")


async def _spent(http: httpx.AsyncClient) -> float:
    windows = (await http.get("/context/usage")).json()["windows"]
    return next((one["cost_usd"] for one in windows if one["window"] == "month"), 0.0)


async def _counted(http: httpx.AsyncClient, cost: float) -> bool:
    return await _spent(http) == cost
