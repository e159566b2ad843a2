"""Schedules on the page."""

from __future__ import annotations

import json

from playwright.async_api import expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


async def test_the_times_of_a_schedule_are_written_in_words_and_confirmed(stage: Stage) -> None:
    """The parsed time is shown and editable; a sentence that cannot be parsed changes nothing."""
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/schedules")
        await page.get_by_role("button", name="New schedule").click()
        words = page.get_by_role("textbox", name="When, in words")
        await words.fill("every weekday at 9 except friday")
        await expect(page.get_by_text("Not understood yet.")).to_be_visible()
        await words.fill("every weekday at 9")
        await expect(page.get_by_text("Understood:")).to_contain_text("09:00")
        await expect(page.get_by_role("combobox", name="Repeats")).to_have_value("weekdays")
        await expect(page.get_by_label("Time", exact=True)).to_have_value("09:00")
        await page.get_by_role("textbox", name="Message to an agent").fill("Check the cranes")
        await page.get_by_role("button", name="Create schedule").click()
        stored = await eventually(lambda: stage.uploads.get("context/schedules"), WAIT_TIMEOUT_S)
    sent = json.loads(stored)
    assert (sent["cron"], sent["start"]["content"]) == ("0 9 * * 1-5", "Check the cranes")


async def test_a_calendar_shows_the_coming_starts_and_leads_to_their_schedule(stage: Stage) -> None:
    """Several starts of a day are one entry, by keyboard too, and a list that was cut off says so."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/schedules")
        calendar = page.get_by_role("region", name="The next two weeks")
        entries = calendar.get_by_role("button", name="Morning report")
        await expect(calendar.get_by_role("heading", level=3)).to_have_count(14)
        await expect(entries).to_have_count(3)
        await expect(entries.first).to_contain_text("2 times")
        await expect(entries.last).to_contain_text("and more often")
        await expect(calendar).to_contain_text("They start too often to list every time: Morning report")
        await entries.last.press("Enter")
        await expect(page.get_by_role("region", name="Morning report")).to_be_focused()
        stage.resources["context/schedules/coming"] = {"items": []}
        await page.reload()
        await expect(calendar).to_contain_text("Nothing starts in the next two weeks.")
