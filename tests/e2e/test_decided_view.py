"""Decided approval requests on the page."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import Look, opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""


async def requested(page: Page, act: str, value: str) -> dict[str, list[str]]:
    """Return the query that the page sends after a field was filled."""
    async with page.expect_request("**/context/decisions*") as request:
        field = page.get_by_role("search").get_by_label(act)
        if await field.evaluate("field => field.tagName") == "SELECT":
            await field.select_option(value)
        else:
            await field.fill(value)
            await field.press("Enter")
    return parse_qs((await request.value).url.partition("?")[2])


async def test_a_filter_keeps_what_is_written_while_the_list_arrives(stage: Stage) -> None:
    stage.resources |= scenes.RESOURCES
    written = asyncio.Event()

    async def after_writing(route: Route) -> None:
        await written.wait()
        await route.continue_()

    async with opened(stage.url) as page:
        await page.route("**/context/decisions*", after_writing)
        await page.goto(f"{stage.url}/#/approvals")
        await page.get_by_role("link", name="Decided", exact=True).click()
        field = page.get_by_role("search").get_by_label("Search")
        await field.press_sequentially("push")
        written.set()
        await expect(page.get_by_role("region", name="Decisions").locator("tbody tr")).to_have_count(3)
        await expect(field).to_have_value("push")
        async with page.expect_request("**/context/decisions*") as request:
            await field.press("Enter")
        assert parse_qs((await request.value).url.partition("?")[2])["text"] == ["push"]


async def test_decisions_are_listed_filtered_and_continued(stage: Stage) -> None:
    """R34: who decided what about which call; texts of others are shown and never interpreted."""
    hostile = scenes.decision(4, "rejected", ("bash", "<img src=x onerror=alert(1)>\u202e", "stopped"))
    listed = scenes.RESOURCES["context/decisions"]["items"]
    stage.resources |= scenes.RESOURCES
    stage.resources["context/decisions"] = {"items": [hostile, *listed], "next": 1}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/approvals")
        await page.get_by_role("link", name="Decided", exact=True).click()
        rows = page.get_by_role("region", name="Decisions").locator("tbody tr")
        await expect(rows).to_have_count(4)
        await expect(rows.first).to_contain_text("<img src=x onerror=alert(1)>")
        await expect(rows.first).to_contain_text("rejected, the run ended")
        await expect(rows.nth(1)).to_contain_text("Partly approved by alice")
        await expect(rows.nth(1)).to_contain_text("git push edited")
        await expect(rows.nth(1).get_by_role("link", name="Cranes")).to_have_attribute("href", "#/c/c1")
        await expect(rows.nth(2)).to_contain_text("Expired")
        await expect(rows.nth(3)).to_contain_text("First approved by ann. Through")
        await expect(rows.nth(3)).to_contain_text("deleted or not readable")
        older = scenes.decision(0, "cancelled", ("bash", "sleep 9", None))
        stage.resources["context/decisions"] = {"items": [older], "next": None}
        await page.get_by_role("button", name="Show earlier decisions").click()
        await expect(rows).to_have_count(5)

        assert (await requested(page, "Search", "push"))["text"] == ["push"]
        await expect(rows).to_have_count(1)
        assert (await requested(page, "Decision", "rejected"))["outcome"] == ["rejected"]
        assert (await requested(page, "Decided by", "ann"))["by"] == ["ann"]
        query = await requested(page, "Tool", "bash")
        assert (query["tool"], query["text"], query["outcome"], query["by"]) == (
            ["bash"],
            ["push"],
            ["rejected"],
            ["ann"],
        )
        stage.resources["context/decisions"] = {"items": [], "next": None}
        days = page.get_by_role("search").get_by_label("Time")
        last_week = await days.locator("option").nth(2).get_attribute("value")
        assert (await requested(page, "Time", last_week or ""))["since"] == [last_week]
        await expect(page.get_by_text("No decision matches.")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1280])
async def test_decisions_fit_a_phone_and_speak_german(stage: Stage, width: int) -> None:
    """R38: no part of a row is cut off."""
    stage.resources |= scenes.RESOURCES
    long = scenes.decision(5, "approved", ("bash", "x" * 200, "approved"), remember="conversation")
    stage.resources["context/decisions"] = {"items": [long], "next": None}
    async with opened(stage.url, look=Look(width=width, language="de")) as page:
        await page.goto(f"{stage.url}/#/decided")
        await expect(page.get_by_text("Gilt für die Unterhaltung.")).to_be_visible()
        if width == 390:
            await expect(page.get_by_text("Gilt für die Unterhaltung.")).to_be_in_viewport()
            await expect(page.get_by_role("search")).to_be_hidden()
            await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_label("Entschieden von")).to_be_visible()
        await expect(page.get_by_role("link", name="Entschieden", exact=True)).to_be_visible()
        wide = await page.evaluate(
            "() => document.documentElement.scrollWidth > innerWidth"
            " || document.querySelector('.scroller').scrollWidth > innerWidth"
        )
        assert not wide
