"""A configured server of the Model Context Protocol is changed on the page."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.e2e import mcp_scenes
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

PATH = "context/mcp-servers/issues"


async def test_a_change_names_its_revision_keeps_secrets_and_shows_each_error_at_its_field(
    stage: Stage,
) -> None:
    """R34, R38: what others changed meanwhile is neither lost nor overwritten."""
    stage.resources |= mcp_scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/mcp/issues")
        tools = page.get_by_role("region", name="Approved tools")
        await expect(tools).to_contain_text("This tool cannot be offered: its inputSchema is []")
        await page.get_by_role("button", name="Change", exact=True).click()
        dialog = page.get_by_role("dialog", name="Change issues")
        address = dialog.get_by_role("textbox", name="Address")
        value = dialog.get_by_label("Value")
        await expect(dialog.get_by_role("textbox", name="Name").first).to_have_value("X-Team")
        await expect(value).to_have_attribute("placeholder", "unchanged")

        error = {"code": "bad_request", "message": "no public address", "field": "transport.url"}
        stage.failures[f"PUT {PATH}"] = (400, error)
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog.get_by_role("alert")).to_have_text("no public address")
        await expect(address).to_be_focused()
        await expect(address).to_have_accessible_description("no public address")
        assert json.loads(stage.uploads[PATH]) == {
            "transport": {
                "type": "http",
                "url": "https://issues.example.org/mcp",
                "headers": {"X-Team": None},
            },
            "description": "",
            "trusted": False,
            "timeout_s": 60,
            "revision": 1,
        }

        await address.fill("https://other.example.org/mcp")
        await expect(dialog.get_by_text("Enter the values again.")).to_be_visible()
        await dialog.get_by_role("button", name="Save").click()
        await expect(value).to_be_focused()

        message = "server 'issues' is at revision 2, not 1: read it again"
        stage.failures[f"PUT {PATH}"] = (409, {"code": "conflict", "message": message})
        stage.resources[PATH] = {**mcp_scenes.ISSUES, "revision": 2, "description": "By grace"}
        await value.fill("new")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("Someone else has changed this server")
        await dialog.get_by_role("button", name="Reload; your changes are lost").click()
        await expect(address).to_have_value("https://issues.example.org/mcp")
        await expect(dialog.get_by_role("textbox", name="Description")).to_have_value("By grace")

        stage.failures.clear()
        stage.resources[f"PUT {PATH}"] = {**mcp_scenes.ISSUES, "revision": 3, "timeout_s": 90}
        await dialog.get_by_label("Seconds that a call may take").fill("90")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_text("A call may take 1 min 30 s.")).to_be_visible()
        sent = json.loads(stage.uploads[PATH])
        assert (sent["revision"], sent["timeout_s"], sent["description"]) == (2, 90, "By grace")


async def test_a_sign_in_that_was_not_finished_in_time_is_explained(stage: Stage) -> None:
    """R34: the gateway sends the browser back to this address."""
    stage.resources |= mcp_scenes.RESOURCES
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/mcp/wiki/ended")
        await expect(page.get_by_text("The sign-in took longer than ten minutes")).to_be_visible()
        await page.goto(f"{stage.url}/#/mcp/wiki")
        await expect(page.get_by_text("The sign-in took longer than ten minutes")).to_have_count(0)
