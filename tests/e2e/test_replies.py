"""What stands below and in a reply, behind a scripted gateway."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.e2e import scenes
from tests.e2e.stage import Stage, open_conversation
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""


LINES = """(cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return range.getClientRects().length;
}"""


async def test_one_row_below_a_reply_has_its_actions_and_its_cost(stage: Stage) -> None:
    """R34: also where the pointer is not over it; the cost leads to the steps."""
    scenes.start(stage)
    scenes.reply(stage, "The load is 40 t.")
    scenes.finish(stage, content="The load is 40 t.")
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        row = page.locator(".reply-tools")
        await expect(row).to_have_count(1)
        await expect(row.get_by_role("button")).to_have_count(2)
        await expect(row.get_by_role("button", name="Copy this message")).to_be_visible()
        await expect(row.get_by_role("button", name="Get another reply")).to_have_css("opacity", "1")
        cost = row.get_by_role("link", name="Steps and cost")
        await expect(cost).to_contain_text("$0.01")
        await expect(cost).to_have_attribute("title", re.compile("demo:model · 2 iterations · 1,200 in"))
        await expect(cost).to_have_attribute("href", "#/runs/c1-r1")


async def test_a_failed_run_shows_a_button_that_tries_again(stage: Stage) -> None:
    """R34: at 390 px, without a pointer over it."""
    scenes.start(stage, "How large?")
    scenes.finish(stage, "failed", error={"code": "provider_error", "message": "The API failed."})
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 390, "height": 800})
        await open_conversation(page, stage)
        await page.locator(".outcome").get_by_role("button", name="Try again").click()
        sent = await eventually(
            lambda: [frame for frame in stage.received if frame["type"] == "chat.send"], WAIT_TIMEOUT_S
        )
        assert (sent[0]["content"], sent[0]["branch"]) == ("How large?", {"after": None})


async def test_the_first_lines_of_an_output_are_shown_and_all_on_a_click(stage: Stage) -> None:
    scenes.start(stage)
    lines = "\n".join(f"line {number}" for number in range(1, 21))
    scenes.call(stage, "k1", "bash", {"command": "cat log"}, exit_code=0, content={"stdout": lines})
    scenes.finish(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.get_by_role("button", name="1 tool call: bash").click()
        call = page.get_by_role("group", name="Tool call bash")
        await expect(call).to_contain_text("line 8")
        await expect(call).not_to_contain_text("line 9")
        await call.get_by_role("button", name="Show all 20 lines").click()
        await expect(call).to_contain_text("line 20")


async def test_texts_of_both_directions_numbers_and_fields_of_a_phone(stage: Stage) -> None:
    """R34: each paragraph has the direction of its letters; a cell with a number is one line."""
    scenes.start(stage, "שלום עולם")
    table = "| crane | " + " | ".join(f"n{at}" for at in range(12)) + " |\n" + "|---" * 13 + "|\n"
    row = "| the crane in the north | " + " | ".join(["1,234,567.89 kg"] * 12) + " |"
    scenes.reply(stage, f"Hello.\n\nמה שלומך?\n\n{table}{row}")
    scenes.finish(stage)
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 390, "height": 800})
        await open_conversation(page, stage)
        await expect(page.locator(".bubble")).to_have_css("direction", "rtl")
        await expect(page.get_by_text("מה שלומך?")).to_have_css("direction", "rtl")
        await expect(page.get_by_text("Hello.")).to_have_css("direction", "ltr")
        numbers = page.get_by_role("cell", name="1,234,567.89 kg")
        assert await numbers.first.evaluate(LINES) == 1
        assert await page.get_by_role("cell", name="the crane in the north").evaluate(LINES) <= 5
        await expect(page.get_by_role("textbox", name="Message")).to_have_css("font-size", "16px")
