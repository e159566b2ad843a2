"""Schedules on the page."""

from __future__ import annotations

import json

from playwright.async_api import expect

from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


async def test_the_times_of_a_schedule_are_written_in_words_and_confirmed(stage: Stage) -> None:
    """What was understood is shown and editable; a sentence that is not understood changes nothing."""
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/schedules")
        await page.get_by_role("button", name="New schedule").click()
        words = page.get_by_role("textbox", name="When, in words")
        await words.fill("every weekday at 9 except friday")
        await expect(page.get_by_text("Not understood yet.")).to_be_visible()
        await words.fill("every weekday at 9")
        await expect(page.get_by_text("Understood:")).to_contain_text("09:00")
        await expect(page.get_by_role("textbox", name="Cron expression")).to_have_value("0 9 * * 1-5")
        await page.get_by_role("textbox", name="Message to an agent").fill("Check the cranes")
        await page.get_by_role("button", name="Create schedule").click()
        stored = await eventually(lambda: stage.uploads.get("context/schedules"), WAIT_TIMEOUT_S)
    sent = json.loads(stored)
    assert (sent["cron"], sent["start"]["content"]) == ("0 9 * * 1-5", "Check the cranes")
