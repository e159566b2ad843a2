"""The operator's view: open runs of all tenants, messages that could not be handled, and a narrow window."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e import scenes
from tests.e2e.navigating import open_view
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
        await page.get_by_role("button", name="Stop run c2-r1").press("Enter")
        dialog = page.get_by_role("dialog", name="Stop the run")
        await expect(dialog.get_by_label("Reason")).to_be_focused()
        await expect(dialog.get_by_role("button", name="Stop the run")).to_be_disabled()
        await page.keyboard.type("It blocks the release.")
        await dialog.get_by_role("button", name="Stop the run").press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(rows.nth(1)).to_contain_text("Stopping…")
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


async def test_the_open_runs_of_one_tenant_are_shown_from_its_row(stage: Stage) -> None:
    """R31, R34: the row has the tenant's open runs and usage; the shown page stays the same."""
    stage.resources |= scenes.RESOURCES
    for state in ("queued", "queued_workflow", "awaiting_approval", "awaiting_input"):
        stage.resources[f"operator/runs?state={state}&tenant=acme"] = {"items": [], "next": None}
    workflow = {"items": [scenes.open_run(7, "acme")], "next": None}
    stage.resources["operator/runs?state=queued_workflow&tenant=acme"] = workflow
    async with opened(stage.url) as page:
        rows = await open_runs(page)
        tenant = page.get_by_role("region", name="Tenants").get_by_role("row", name="acme")
        await expect(tenant).to_contain_text("2 queued or running")
        await expect(tenant).to_contain_text("1 request waits for a person")
        await tenant.get_by_role("button", name="Show the open runs of acme").press("Enter")
        await expect(rows).to_have_text([re.compile("acme.*c7-r1.*Workflow, queued or running")])
        await expect(page.get_by_text("Only runs of acme.")).to_be_visible()
        await page.get_by_role("button", name="Show all tenants").click()
        await expect(rows).to_have_count(3)


async def test_messages_that_could_not_be_handled_are_shown_page_by_page(stage: Stage) -> None:
    """R34: one that was replayed on a further page is marked, and the list stays where it is."""
    stage.resources |= scenes.RESOURCES
    first = {**scenes.RESOURCES["operator/dead-letters"], "next": 8}
    stage.resources["operator/dead-letters"] = first
    further = [{**one, "id": one["id"] + 2, "can_replay": True} for one in first["items"]]
    stage.resources["operator/dead-letters?limit=50&after=8"] = {"items": further, "next": None}
    async with opened(stage.url) as page:
        await page.clock.install()
        await open_view(page, "Operations")
        rows = page.get_by_role("region", name="Messages that could not be handled").locator("tbody tr")
        await page.get_by_role("button", name="Show more messages").click()
        await expect(rows).to_have_count(4)
        await page.get_by_role("button", name="Send again: message 10").click()
        await expect(rows.last).to_contain_text("Done")
        await page.clock.run_for("00:05")
        await expect(rows).to_have_count(4)
        await page.get_by_role("button", name="Refresh").click()
        await expect(rows).to_have_count(2)
    assert "operator/dead-letters/10/replay" in stage.uploads


async def test_an_operator_reads_a_message_that_could_not_be_handled_and_discards_it(stage: Stage) -> None:
    """R34: its content is shown on several lines and never interpreted; it is deleted once confirmed."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await open_view(page, "Operations")
        await page.get_by_role("button", name="Show message 8").click()
        dialog = page.get_by_role("dialog", name="Message 8")
        content = dialog.get_by_role("group", name="Content")
        await expect(content).to_have_text('{\n  "run_id": "c8-r1",\n  "text": "<b>bold</b>"\n}')
        await expect(dialog.get_by_text("Only the beginning is shown.")).to_be_visible()
        await expect(dialog.get_by_text("banksman dead replay 8")).to_be_visible()
        await expect(dialog.get_by_role("button", name="Send again")).to_have_count(0)
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
    await open_view(page, "Operations")
    rows = page.get_by_role("region", name="Open runs").locator("tbody tr")
    await expect(rows).to_have_count(3)
    return rows


@pytest.mark.parametrize("width", [900, 1024, 1440])
async def test_no_table_scrolls_sideways_beside_the_list(stage: Stage, width: int) -> None:
    """R38: at a width at which the list of conversations leaves the view two thirds of the window."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": width, "height": 860})
        await open_runs(page)
        await expect(page.get_by_role("region", name="Tenants")).to_be_visible()
        tables = await page.locator(".operator .table").evaluate_all(
            "found => found.map((table) => [table.ariaLabel, table.scrollWidth - table.clientWidth])"
        )
    assert len(tables) > 3
    assert [(name, hidden) for name, hidden in tables if hidden > 0] == []
