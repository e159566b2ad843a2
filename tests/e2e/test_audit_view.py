"""The audit trail on the page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e import scenes
from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""


async def test_the_trail_is_selected_continued_and_downloaded(stage: Stage) -> None:
    """R34: an administrator sees the own tenant; names given by users are shown and never interpreted."""
    hostile = scenes.entry(3, "assistant.deleted", "<img src=x onerror=alert(1)>")
    stage.resources |= scenes.RESOURCES
    stage.resources["v1/audit"] = {"items": [hostile, scenes.RESOURCES["v1/audit"]["items"][0]], "next": 2}
    stage.resources["v1/audit/export"] = b"ts,tenant\n"
    async with opened(stage.url) as page:
        await open_view(page, "Audit trail")
        rows = page.get_by_role("region", name="Entries").locator("tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("<img src=x onerror=alert(1)>")
        await expect(rows.nth(1)).to_contain_text("changed the approval rules")
        stage.resources["v1/audit"] = {"items": [scenes.RESOURCES["v1/audit"]["items"][1]], "next": None}
        await page.get_by_role("button", name="Show earlier entries").click()
        await expect(rows).to_have_count(3)
        await expect(rows.last).to_contain_text("rights: chat, approve")
        await page.get_by_role("combobox", name="What").select_option("key")
        await expect(rows).to_have_count(1)
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download as CSV").click()
        saved = await download.value
        assert saved.suggested_filename == "audit.csv"
        content = Path(await saved.path())
        assert await asyncio.to_thread(content.read_bytes) == b"ts,tenant\n"
        stage.rights = ("chat",)
        await page.reload()
        await expect(page.get_by_role("link", name="Approvals")).to_be_visible()
        await page.get_by_role("button", name="Account: ada").click()
        await expect(page.get_by_role("menuitem", name="Settings")).to_be_visible()
        await expect(page.get_by_role("menuitem", name="Manage")).to_have_count(0)
