"""Conversations: queue, steer, stop; versions; thinking; reloads, broken connections and costs."""

from __future__ import annotations

import os
import signal
from functools import partial

import httpx
import pytest
from playwright.async_api import Page, expect

from banksman.contracts.ids import new_id
from tests.e2e.tasks.people import (
    GERMAN,
    PHONE,
    PHONE_DARK,
    WIDE,
    WIDE_DARK,
    Look,
    Office,
    ask,
    ended,
    seen,
)
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import kill
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
WORDS = " ".join(f"word{number}" for number in range(40)) + " end."


def halted(gate: str, **more: object) -> ScriptedReply:
    """Return a reply that waits at a gate after its first words."""
    return ScriptedReply(text=WORDS, gate=Gate(name=gate, after_events=8), **more)  # type: ignore[arg-type]


async def shows_beginning(page: Page) -> None:
    await expect(page.locator(".turn.assistant")).to_contain_text("word3")


@seen(PHONE_DARK, GERMAN)
async def test_a_message_is_queued_another_one_steers_and_the_run_is_stopped(
    office: Office, look: Look
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
    queue, steer, stop = {
        "en-US": ("Queue", "Steer", "Stop the run"),
        "de-DE": ("Einreihen", "Lenken", "Lauf anhalten"),
    }[look.language]
    async with office.at(conversation, look) as page:
        await ask(page, "How high is it?")
        await expect(page.get_by_role("button", name=queue, exact=True)).to_be_visible()
        await ask(page, "And how wide?")
        await expect(page.locator("[data-status=queued]")).to_have_count(1)
        await page.get_by_role("button", name=steer, exact=True).press("Enter")
        await ask(page, "Answer in metres.")
        # A message that the agent has not accepted yet is shown as well.
        await expect(page.locator(".bubble:not(.sending)", has_text="Answer in metres.")).to_be_visible()
        office.model.open_gate(first)
        await expect(page.get_by_text("In metres.", exact=True)).to_be_visible()
        await expect(page.get_by_text("word3")).to_be_visible()
        await page.get_by_role("button", name=stop).click()
        await ended(page, "cancelled")
        await ended(page)
    asked = [str(one["messages"][-1]["content"]) for one in office.requests(model)]
    assert ["Answer in metres." in asked[1], "And how wide?" in asked[2]] == [True, True]
    office.model.open_gate(last)


@seen(PHONE, WIDE_DARK)
async def test_a_message_is_edited_and_a_reply_is_asked_for_again_and_every_version_stays(
    office: Office, look: Look
) -> None:
    """Tasks 12 and 13: by keyboard where the window is wide."""
    replies = [ScriptedReply(text=f"Reply {number}.") for number in (1, 2, 3)]
    conversation = await office.conversation(model=office.play(*replies, by="count"))
    async with office.at(conversation, look) as page:
        await ask(page, "One")
        await expect(page.get_by_text("Reply 1.", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Get another reply").press("Enter")
        await expect(page.get_by_text("Reply 2.", exact=True)).to_be_visible()
        await expect(page.get_by_text("2/2")).to_be_visible()
        await page.get_by_role("button", name="Previous version").press("Enter")
        await expect(page.get_by_text("Reply 1.", exact=True)).to_be_visible()
        await expect(page.get_by_text("Reply 2.", exact=True)).to_be_hidden()

        await page.get_by_role("button", name="Edit and send again").press("Enter")
        editor = page.get_by_role("textbox", name="Edit and send again")
        await expect(editor).to_be_focused()
        await editor.fill("One, edited")
        await editor.press("Control+Enter")
        await expect(page.get_by_text("Reply 3.", exact=True)).to_be_visible()
        await expect(page.locator(".bubble")).to_have_text("One, edited")
        await page.reload()
        await expect(page.get_by_text("3/3")).to_be_visible()


@seen(WIDE)
async def test_a_conversation_goes_on_from_an_earlier_reply_and_the_later_one_is_found_again(
    office: Office, look: Look
) -> None:
    """Task 14."""
    replies = [ScriptedReply(text=f"Reply {number}.") for number in (1, 2, 3)]
    model = office.play(*replies, by="count")
    conversation = await office.conversation(model=model)
    async with office.at(conversation, look) as page:
        for number, text in enumerate(("One", "Two"), 1):
            await ask(page, text)
            await expect(page.get_by_text(f"Reply {number}.", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Continue from here").first.click()
        await expect(page.get_by_text("Your next message follows an earlier reply.")).to_be_visible()
        await ask(page, "Other two")
        await expect(page.get_by_text("Reply 3.", exact=True)).to_be_visible()
        await expect(page.get_by_text("Reply 2.", exact=True)).to_be_hidden()
        assert [one["content"] for one in office.requests(model)[2]["messages"][-2:]] == [
            "Reply 1.",
            "Other two",
        ]
        await page.get_by_role("button", name="Previous version").click()
        await expect(page.get_by_text("Reply 2.", exact=True)).to_be_visible()
        await expect(page.get_by_text("Reply 3.", exact=True)).to_be_hidden()


@seen(GERMAN)
async def test_the_thinking_of_a_finished_reply_is_read_by_keyboard(office: Office, look: Look) -> None:
    """Task 15: folded, with its time, also after a reload."""
    reply = ScriptedReply(text="It is 40 t.", reasoning="The chart names 40 t.")
    conversation = await office.conversation(reply)
    async with office.at(conversation, look) as page:
        await ask(page, "Wie schwer?")
        await ended(page)
        await page.reload()
        thought = page.locator(".reasoning summary")
        await expect(thought).to_have_text("1 s nachgedacht")
        await expect(page.get_by_text("The chart names 40 t.")).to_be_hidden()
        await thought.press("Enter")
        await expect(page.get_by_text("The chart names 40 t.")).to_be_visible()


@seen(PHONE)
async def test_a_reply_goes_on_after_a_reload_and_in_a_second_tab(office: Office, look: Look) -> None:
    """Task 16: both show the text so far, then all of it, once."""
    gate = new_id("g")
    conversation = await office.conversation(halted(gate))
    async with office.at(conversation, look) as page, office.at(conversation, WIDE_DARK) as second:
        await ask(page, "Count.")
        await shows_beginning(page)
        await page.reload()
        await second.reload()
        for tab in (page, second):
            await shows_beginning(tab)
        office.model.open_gate(gate)
        for tab in (page, second):
            await expect(tab.locator(".turn.assistant .prose")).to_have_text(WORDS)


@seen(WIDE)
async def test_a_reply_survives_a_gateway_that_is_killed_or_frozen_and_a_missing_network(
    office: Office, look: Look
) -> None:
    """Task 18: the page says so soon, keeps the text, and sends what was written meanwhile once."""
    gates = [new_id("g") for _ in range(2)]
    model = office.play(*[halted(gate) for gate in gates], ScriptedReply(text="Third."))
    conversation = await office.conversation(model=model)
    lost = "Connection lost. Your runs continue."
    async with office.at(conversation, look) as page:
        await ask(page, "Count.")
        await shows_beginning(page)
        kill(office.system.service_pids("gateway")[-1])
        await expect(page.get_by_text(lost)).to_be_visible()
        await expect(page.get_by_text(lost)).to_be_hidden()
        await shows_beginning(page)
        office.model.open_gate(gates[0])
        await expect(page.locator(".turn.assistant .prose")).to_have_text(WORDS)

        await ask(page, "Again.")
        await expect(page.locator(".turn.assistant").nth(1)).to_contain_text("word3")
        frozen = office.system.service_pids("gateway")[-1]
        os.kill(frozen, signal.SIGSTOP)
        try:
            # Five seconds, and one for a busy machine.
            await expect(page.get_by_text(lost)).to_be_visible(timeout=6_000)
        finally:
            os.kill(frozen, signal.SIGCONT)
        office.model.open_gate(gates[1])
        await expect(page.locator(".turn.assistant .prose").nth(1)).to_have_text(WORDS)
        await ended(page, count=2)

        await page.context.set_offline(True)
        await ask(page, "Third?")
        await expect(page.locator(".bubble.sending, .bubble.failed")).to_be_visible()
        await page.context.set_offline(False)
        await expect(page.get_by_text("Third.", exact=True)).to_be_visible()
        await expect(page.locator(".bubble").filter(has_text="Third?")).to_have_count(1)
    assert len(await office.events(conversation, "run.started")) == 3


@seen(PHONE_DARK)
async def test_the_cost_of_a_run_of_the_conversation_and_of_the_month_is_found(
    office: Office, look: Look
) -> None:
    """Task 19: with the step that caused it."""
    usage = ScriptedUsage(input_tokens=4_000, output_tokens=500)
    model = office.play(ScriptedReply(text="Dear.", usage=usage), name="dear", at_end="repeat")
    conversation = await office.conversation(model=model)
    async with office.at(conversation, look) as page:
        for count in (1, 2):
            await ask(page, "How much?")
            await ended(page, count=count)
        await expect(page.locator(".header-title").get_by_text("$9.00 in all")).to_be_visible()
        await page.get_by_role("link", name="Steps and cost").last.click()
        await expect(page.get_by_role("region", name="Run", exact=True)).to_contain_text("$4.50")
        await page.get_by_role("button", name="By cost").click()
        await expect(page.locator(".step").first).to_contain_text("$4.50")
        async with office.http() as http:
            # Agents report what they used together.
            await eventually(partial(_counted, http), WAIT_TIMEOUT_S)
        await page.goto(f"{office.system.url}/#/settings")
        await expect(page.get_by_text("All runs together: $9.00")).to_be_visible()


async def _counted(http: httpx.AsyncClient) -> bool:
    windows = (await http.get("/context/usage")).json()["windows"]
    return any(one["window"] == "month" and one["cost_usd"] == 9.0 for one in windows)
