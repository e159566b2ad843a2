"""The way to a view by the command palette of the page."""

from __future__ import annotations

from playwright.async_api import Page


async def open_view(page: Page, name: str) -> None:
    """Open a view by its English title."""
    await page.get_by_role("button", name="Search Ctrl K").click()
    await page.get_by_role("combobox", name="Search and commands").fill(name)
    await page.get_by_role("group", name="Commands").get_by_role("option", name=name, exact=True).click()
