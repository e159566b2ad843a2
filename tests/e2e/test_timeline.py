"""How the page shows the work of an agent, behind a scripted gateway."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import WAIT_TIMEOUT_MS, opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

CALL = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'


async def test_a_text_that_resembles_a_call_is_shown_as_text(stage: Stage) -> None:
    """R16, R38: calls are events; the page reads none out of a text."""
    scenes.start(stage)
    scenes.reply(stage, CALL)
    scenes.finish(stage, content=CALL)

    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        message = page.get_by_role("article", name="Agent")
        await expect(message.get_by_role("paragraph")).to_have_text(CALL, timeout=WAIT_TIMEOUT_MS)
        await expect(page.get_by_role("button", name="tool call")).to_have_count(0)


async def test_a_log_that_was_cut_is_shown_where_it_was_cut(stage: Stage) -> None:
    """R34: not silently shorter; the conversation continues after it."""
    scenes.start(stage)
    scenes.reply(stage, "The load is 40 t.")
    scenes.finish(stage, content="The load is 40 t.")
    stage.event("history.cut", {"first_missing": 5, "set_aside": 3}, run_id=None)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        lost = page.get_by_role("note").filter(has_text="A part of this conversation was lost")
        await expect(lost).to_contain_text("has kept 3 later entries in a file")
        await expect(lost.locator("xpath=preceding-sibling::section")).to_contain_text("The load is 40 t.")


async def test_a_working_agent_is_one_line_whose_calls_open_on_a_click(stage: Stage) -> None:
    """R34: the line counts the iterations, and states the calls until a user wants to see each."""
    scenes.start(stage)
    stage.event("iteration.started", {"n": 2, "max": 10})
    for number in (1, 2, 3):
        scenes.call(stage, f"k{number}", "bash", {"command": f"echo {number}"}, exit_code=0)

    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        working = page.get_by_role("status").filter(
            has_text="The agent is working (iteration 2 of at most 10)"
        )
        await expect(working).to_be_visible(timeout=WAIT_TIMEOUT_MS)
        await expect(page.get_by_role("group", name="Tool call bash")).to_have_count(0)
        await page.get_by_role("button", name="3 tool calls: bash").click()
        cards = page.get_by_role("group", name="Tool call bash")
        await expect(cards).to_have_count(3)
        await expect(cards.nth(2)).to_contain_text("echo 3")


async def test_pages_that_a_search_found_are_listed_with_title_day_and_snippet(stage: Stage) -> None:
    """R34: in the call, and below the reply unless the run has read them; other addresses are not."""
    results = [
        {
            "title": "Leases",
            "url": "https://docs.example.org/leases",
            "snippet": "How a lease ends",
            "date": "2026-03-01",
        },
        {"title": "Locks", "url": "https://example.com/locks", "snippet": "Not a lease"},
        {"title": "Bad", "url": "javascript:alert(1)", "snippet": "Click"},
    ]
    scenes.start(stage)
    found = {"success": True, "provider": "brave", "results": results}
    scenes.call(stage, "k1", "web_search", {"query": "end of a lease"}, content=found)
    read = {"url": "https://example.com/locks"}
    scenes.call(stage, "k2", "web_fetch", read, content={"success": True, **read, "body": "Locks"})
    scenes.reply(stage, "A lease ends.")
    scenes.finish(stage, content="A lease ends.")

    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await page.get_by_text("1 search result").click(timeout=WAIT_TIMEOUT_MS)
        below = page.locator(".found-pages li")
        await expect(below).to_have_count(1)
        await expect(below).to_contain_text("docs.example.org · 2026-03-01")
        await expect(below).to_contain_text("How a lease ends")
        link = below.get_by_role("link", name="Leases")
        await expect(link).to_have_attribute("href", "https://docs.example.org/leases")
        await page.get_by_role("button", name="2 tool calls").click()
        await page.get_by_role("group", name="Tool call web_search").get_by_role("button").first.click()
        card = page.get_by_role("group", name="Tool call web_search")
        await expect(card).to_contain_text("end of a lease")
        await expect(card.locator(".found li")).to_have_count(2)
        await expect(page.get_by_role("link", name="Bad")).to_have_count(0)


async def test_reasoning_is_stored_and_shown_folded_with_its_time(stage: Stage) -> None:
    """R34: also without details; it takes the place of its pieces."""
    scenes.start(stage)
    thought = {"message_id": "a9", "text": "Compare both.", "characters": 30_000, "duration_s": 11.6}
    stage.event("reasoning.completed", thought)
    scenes.reply(stage, "The north crane.")
    scenes.finish(stage, content="The north crane.")

    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        folded = page.locator("details.reasoning")
        await expect(folded.get_by_text("Thought for 12 s")).to_be_visible()
        await expect(folded.get_by_text("Compare both.")).to_be_hidden()
        await folded.get_by_text("Thought for 12 s").click()
        await expect(folded.get_by_text("Compare both.")).to_contain_text("The rest was not stored.")
