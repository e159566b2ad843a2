"""A person builds a workflow without code, changes it and starts it."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import expect

from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.e2e.workflow_scenes import STORED
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


async def test_a_workflow_is_built_from_steps_and_started_from_the_list(stage: Stage) -> None:
    """R15, R22, R112: form, prompt, tool and approval, each with values of earlier steps."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
    stage.resources |= {
        "context/tools": {"items": [{"name": "write_file", "input_schema": schema}]},
        "workflows/categories": {"items": [{"name": "general", "title": "General", "workflows": [STORED]}]},
        "workflows/announce_a_version": STORED,
        "POST workflows": STORED,
    }

    def started() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "workflow.start"), None)

    async with opened(stage.url) as page:
        await open_view(page, "Workflows")
        await page.get_by_role("link", name="New workflow").click()
        await page.get_by_label("Name").fill("Announce a version")
        await page.get_by_role("button", name="Add a field").click()
        await page.get_by_label("Label").fill("Version")
        await page.get_by_role("button", name="Add a prompt").click()
        first = page.get_by_role("listitem", name="Step 1")
        await first.get_by_label("What should the agent do?").fill("Announce ")
        await first.get_by_role("button", name="parameters.version").click()
        await page.get_by_role("button", name="Add an approval").click()
        second = page.get_by_role("listitem", name="Step 2")
        await second.get_by_label("What should the user approve?").fill("Write it?")
        await page.get_by_role("button", name="Add a tool").click()
        third = page.get_by_role("listitem", name="Step 3")
        await third.get_by_role("combobox").select_option("write_file")
        await third.get_by_role("textbox", name="path").fill("NOTES.md")
        await third.get_by_role("textbox", name="content").fill("")
        await (
            third.get_by_role("group", name="Insert a value")
            .nth(1)
            .get_by_role("button", name="steps.prompt1")
            .click()
        )
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("heading", name="Announce a version")).to_be_visible()
        await page.goto(f"{stage.url}/#/workflows")
        await expect(page.get_by_role("heading", name="General").locator(".icon")).to_be_visible()
        await page.get_by_role("button", name="Start Announce a version").click()
        await page.get_by_role("textbox", name="Version").fill("2.1")
        await page.get_by_role("button", name="Start", exact=True).click()
        start = await eventually(started, WAIT_TIMEOUT_S)
    sent = json.loads(stage.uploads["workflows"])
    assert (sent["name"], sent["parameters_schema"]["required"]) == ("announce_a_version", ["version"])
    prompt, approval, tool = sent["built"]["steps"]
    assert (prompt["prompt"], approval["message"]) == ("Announce {{parameters.version}}", "Write it?")
    assert tool["arguments"] == {"path": "NOTES.md", "content": "{{steps.prompt1}}"}
    assert (start["workflow"], start["parameters"]) == ("announce_a_version", {"version": "2.1"})
