"""The form of a workflow has a control for each hint, and shows what a command or a model filled in."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.stage import CONVERSATION, Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

FORM = {
    "type": "object",
    "required": ["source"],
    "properties": {
        "source": {"type": "string", "title": "Source", "x-hint": "file"},
        "targets": {
            "type": "array",
            "title": "Targets",
            "items": {"type": "string", "enum": ["web", "phone", "desk"]},
            "default": ["web"],
            "x-hint": "several",
        },
        "key": {"type": "string", "title": "Key", "x-hint": "secret"},
        "day": {"type": "string", "title": "Day", "x-hint": "date"},
    },
}
PUBLISH = {"name": "publish", "title": "Publish", "description": "", "parameters_schema": FORM}


@pytest.fixture
def published(stage: Stage) -> Stage:
    """A gateway with one workflow, and one file in the workspace."""
    stage.resources["workflows/categories"] = {
        "items": [{"name": "general", "title": "General", "workflows": [PUBLISH]}]
    }
    stage.resources[f"context/conversations/{CONVERSATION}/files"] = {"items": [{"path": "notes.md"}]}
    return stage


async def started(stage: Stage) -> dict[str, Any]:
    """Return the parameters with which the page started a workflow."""

    def found() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "workflow.start"), None)

    return (await eventually(found, WAIT_TIMEOUT_S))["parameters"]


async def test_files_lists_secrets_and_dates_have_their_controls(published: Stage) -> None:
    """R22, R112: an uploaded file is stored in a conversation, which then shows the run of the workflow."""
    async with opened(published.url) as page:
        await page.get_by_role("button", name="Workflows").click()
        await page.get_by_role("button", name="Publish").click()
        chosen = page.get_by_role("group", name="Targets")
        await expect(chosen.get_by_role("checkbox", name="web")).to_be_checked()
        await chosen.get_by_role("checkbox", name="desk").check()
        key = page.get_by_role("textbox", name="Key")
        await expect(key).to_have_attribute("type", "password")
        await page.get_by_label("Day").fill("2027-02-03")
        async with page.expect_file_chooser() as choosing:
            await page.get_by_role("button", name="Upload a file for Source").click()
        file = {"name": "notes.md", "mimeType": "text/plain", "buffer": b"New."}
        await (await choosing.value).set_files([file])  # type: ignore[list-item]  # the dictionary is a FilePayload
        await expect(page.get_by_role("combobox", name="Source")).to_have_value("uploads/notes.md")
        await page.get_by_role("button", name="Start", exact=True).click()
        parameters = await started(published)
        link = {"workflow": "publish", "workflow_run_id": "c2-r1", "workflow_conversation_id": "c2"}
        await published.send(published.event("workflow.linked", link, run_id=None))
        await expect(page.get_by_role("group", name="Workflow publish")).to_be_visible()
    assert parameters == {"source": "uploads/notes.md", "targets": ["web", "desk"], "day": "2027-02-03"}
    assert published.uploads[f"context/conversations/{CONVERSATION}/files/uploads/notes.md"] == b"New."


async def test_plain_language_fills_a_form_that_names_what_does_not_fit(published: Stage) -> None:
    """R22: a model chooses the workflow; nothing starts before the user confirms."""
    wrong = {"parameter": "size", "value": "big", "expected": "a parameter of the workflow"}
    published.resources["POST workflows/parse"] = {
        "workflow": PUBLISH,
        "parameters": {"source": "notes.md", "targets": ["phone"]},
        "problems": [wrong, {"parameter": "key", "value": None, "expected": "a value: it is required"}],
    }
    async with opened(published.url) as page:
        await page.get_by_role("button", name="Workflows").click()
        await page.get_by_role("searchbox", name="Find a workflow").fill("put my notes on the phone, big")
        await page.get_by_role("button", name="Fill in a form from these words").click()
        await expect(page.get_by_role("combobox", name="Source")).to_have_value("notes.md")
        await expect(page.get_by_role("checkbox", name="phone")).to_be_checked()
        shown = page.get_by_role("dialog").get_by_role("alert")
        await expect(shown).to_have_text("size=big: expected a parameter of the workflow")
        assert not any(frame["type"] == "workflow.start" for frame in published.received)
        await page.get_by_role("button", name="Start", exact=True).click()
        assert (await started(published))["source"] == "notes.md"
