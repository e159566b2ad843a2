"""The operator's view: open runs of all tenants, messages that could not be handled, and a narrow window."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""


async def test_an_operator_cancels_an_open_run_of_any_tenant_with_a_reason(stage: Stage) -> None:
    """R34: by keyboard; only runs of the own tenant are links."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        rows = await open_runs(page)
        await expect(rows).to_have_text(
            [
                re.compile("acme.*c1-r1.*Queued or running"),
                re.compile("acme.*c2-r1.*Waits for approval"),
                re.compile("local.*c3-r1.*Waits for approval"),
            ]
        )
        await expect(rows.get_by_role("link")).to_have_attribute("href", "#/runs/c3-r1")
        await page.get_by_role("button", name="Cancel run c2-r1").press("Enter")
        dialog = page.get_by_role("dialog", name="Cancel the run")
        await expect(dialog.get_by_label("Reason")).to_be_focused()
        await expect(dialog.get_by_role("button", name="Cancel the run")).to_be_disabled()
        await page.keyboard.type("It blocks the release.")
        await dialog.get_by_role("button", name="Cancel the run").press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(rows.nth(1)).to_contain_text("Being cancelled")
    body = json.loads(stage.uploads["operator/runs/acme/c2-r1/cancel"])
    assert body == {"reason": "It blocks the release."}


async def test_open_runs_are_shown_page_by_page(stage: Stage) -> None:
    """R34: with a page of more runs, nothing replaces the list; refreshing begins it again."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.clock.install()
        rows = await open_runs(page)
        await page.get_by_role("button", name="Show more runs").click()
        await expect(rows).to_have_count(4)
        await expect(rows.last).to_contain_text("zeta")
        await expect(page.get_by_role("button", name="Show more runs")).to_have_count(0)
        await page.get_by_role("button", name="Refresh").click()
        await expect(rows).to_have_count(3)
        stage.resources["operator/runs?state=queued"] = {"items": [], "next": None}
        await page.clock.run_for("00:05")
        await expect(rows).to_have_count(2)


async def test_an_operator_reads_a_message_that_could_not_be_handled_and_discards_it(stage: Stage) -> None:
    """R34: its content is shown on several lines and never interpreted; it is deleted after a question."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.get_by_role("link", name="Operations").click()
        await page.get_by_role("button", name="Show message 8").click()
        dialog = page.get_by_role("dialog", name="Message 8")
        content = dialog.get_by_role("group", name="Content")
        await expect(content).to_have_text('{\n  "run_id": "c8-r1",\n  "text": "<b>bold</b>"\n}')
        await expect(dialog.get_by_text("Only the beginning is shown.")).to_be_visible()
        await expect(dialog.get_by_text("banksman dead replay 8")).to_be_visible()
        await expect(dialog.get_by_role("button", name="Replay")).to_have_count(0)
        await dialog.get_by_role("button", name="Discard").click()
        assert "operator/dead-letters/8" not in stage.uploads
        stage.resources["operator/dead-letters"] = {"items": [], "next": None}
        await dialog.get_by_role("button", name="Discard permanently").click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_text("None. Every message was handled.")).to_be_visible()
    assert "operator/dead-letters/8" in stage.uploads


async def test_each_cell_is_within_a_narrow_window_with_the_name_of_its_column(stage: Stage) -> None:
    """R38: a row becomes a block; no column is cut off, and the table keeps its roles."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 360, "height": 860})
        await page.goto(f"{stage.url}/#/operator")
        services = page.get_by_role("table").filter(has_text="stream RUNS is missing")
        await expect(services.get_by_role("row")).to_have_count(5)
        cells = page.locator(".records td")
        boxes = await cells.evaluate_all("all => all.map((cell) => cell.getBoundingClientRect().right)")
        names = await cells.evaluate_all(
            "all => all.map((cell) => getComputedStyle(cell, '::before').content)"
        )
    assert max(boxes) <= 360
    assert '"State"' in names
    assert "none" not in names


async def open_runs(page: Page) -> Locator:
    await page.get_by_role("link", name="Operations").click()
    rows = page.get_by_role("region", name="Open runs").locator("tbody tr")
    await expect(rows).to_have_count(3)
    return rows
