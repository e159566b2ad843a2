"""Commands and files in the message box."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.scenes import start
from tests.e2e.stage import Stage
from tests.e2e.workflow_scenes import STORED
from tests.support.browser import Look, opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


def _sent(stage: Stage, kind: str) -> Any:
    return next((frame for frame in stage.received if frame["type"] == kind), None)


async def test_a_command_is_completed_and_its_form_confirmed(stage: Stage) -> None:
    """R15, R112: by keyboard alone; the form has the parameters of the command."""
    stage.resources["workflows/categories"] = {"items": [{"name": "general", "workflows": [STORED]}]}
    parsed = {"workflow": STORED, "parameters": {"version": "2.1"}, "problems": []}
    stage.resources["POST workflows/parse"] = parsed
    async with opened(stage.url) as page:
        box = page.get_by_role("textbox", name="Message")
        await box.press_sequentially("/ann")
        await expect(page.get_by_role("option", name="announce_a_version")).to_be_visible()
        await box.press("Enter")
        await expect(box).to_have_value("/announce_a_version ")
        await box.press_sequentially("version=2.1")
        await box.press("Enter")
        await expect(page.get_by_role("textbox", name="Version")).to_have_value("2.1")
        await page.get_by_role("button", name="Start", exact=True).click()
        frame = await eventually(lambda: _sent(stage, "workflow.start"), WAIT_TIMEOUT_S)
    assert (frame["workflow"], frame["parameters"]) == ("announce_a_version", {"version": "2.1"})
    assert _sent(stage, "chat.send") is None


async def test_a_file_of_the_workspace_is_completed_and_attached(stage: Stage) -> None:
    start(stage)
    stage.resources["context/conversations/c1/files"] = {"items": [{"path": "src/load.py"}]}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        box = page.get_by_role("textbox", name="Message")
        await box.press_sequentially("Explain @load")
        await page.get_by_role("option", name="src/load.py").click()
        await expect(box).to_have_value("Explain @src/load.py ")
        await box.press("Enter")
        frame = await eventually(lambda: _sent(stage, "chat.send"), WAIT_TIMEOUT_S)
    assert (frame["content"], frame["attachments"]) == ("Explain @src/load.py", ["src/load.py"])


PROMPT = {
    "server": "issues",
    "name": "triage",
    "title": "Triage",
    "description": "Sorts the issues \\u202eetirw.",
    "arguments": [
        {"name": "label", "description": "Which issues", "required": True},
        {"name": "tone", "description": "", "required": False},
    ],
}


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_prompt_of_a_server_is_filled_in_and_its_text_is_put_into_the_box_unsent(
    stage: Stage, width: int
) -> None:
    stage.resources["workflows/categories"] = {"items": []}
    stage.resources["context/mcp-prompts"] = {"items": [PROMPT]}
    path = "context/mcp-servers/issues/prompt"
    stage.failures[f"POST {path}"] = (409, {"code": "conflict", "message": "the server did not answer"})
    async with opened(stage.url, look=Look(width=width)) as page:
        box = page.get_by_role("textbox", name="Message")
        await box.press_sequentially("/tri")
        await expect(page.get_by_role("option", name="triage")).to_contain_text("issues · Triage")
        await box.press("Enter")
        dialog = page.get_by_role("dialog", name="Triage")
        await expect(dialog.get_by_text("A prompt of the server issues")).to_be_visible()
        await expect(dialog.get_by_role("textbox", name="Tone optional")).to_be_visible()
        insert = dialog.get_by_role("button", name="Insert the text")
        await insert.click()
        await expect(dialog.get_by_role("textbox", name="Label")).to_be_focused()
        await dialog.get_by_role("textbox", name="Label").fill("bug")
        await insert.click()
        await expect(dialog.get_by_role("alert")).to_contain_text("the server did not answer")
        stage.failures.clear()
        stage.resources[f"POST {path}"] = {"text": "/Triage all issues\nwith the label bug."}
        await insert.click()
        await expect(dialog).to_have_count(0)
        await expect(box).to_have_value("/Triage all issues\nwith the label bug.")
        await expect(box).to_be_focused()
        await expect(page.get_by_role("listbox")).to_have_count(0)
    assert json.loads(stage.uploads[path]) == {"name": "triage", "arguments": {"label": "bug"}}
    assert _sent(stage, "chat.send") is None
