"""Choose a model by its price, and edit an assistant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from tests.e2e.assistant_scenes import ASSISTANT, assistants
from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.support.browser import opened, send_message
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


async def test_a_model_is_chosen_by_provider_price_and_context(stage: Stage) -> None:
    def sent() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "chat.send"), None)

    assistants(stage)
    async with opened(stage.url) as page:
        await page.get_by_role("button", name="Model of your next messages").click()
        row = page.get_by_role("button", name="gpt-5")
        await expect(row).to_contain_text("$1.25 in, $10 out per million tokens · 400,000 tokens of context")
        await page.get_by_role("searchbox", name="Find a model").fill("claude")
        await expect(row).to_be_hidden()
        await page.get_by_role("button", name="claude").click()
        await send_message(page, "Hello")
        assert (await eventually(sent, WAIT_TIMEOUT_S))["overrides"] == {"model": "anthropic:claude"}


async def test_an_assistant_is_edited_with_a_preview_and_the_changes_of_a_save(stage: Stage) -> None:
    assistants(stage)
    async with opened(stage.url) as page:
        await open_view(page, "Assistants")
        await page.get_by_role("link", name="Cranes").click()
        await expect(page.get_by_role("button", name="Save")).to_be_disabled()
        await page.get_by_role("textbox", name="Prompt").fill("You know tower cranes.")
        await page.get_by_text("What the model reads").click()
        await expect(page.get_by_text("About 1,234 tokens. Tools: bash.")).to_be_visible()
        await page.get_by_role("checkbox", name="web_fetch").check()
        await page.get_by_role("button", name="Add a rule").click()
        await page.get_by_role("combobox", name="What happens").last.select_option("deny")
        await page.get_by_label("Cost in dollars").fill("0.5")
        await expect(page.locator(".diff .row.added").first).to_contain_text("You know tower cranes.")
        await page.get_by_role("button", name="Save").click()
        stored = await eventually(lambda: stage.uploads.get("context/assistants/cranes"), WAIT_TIMEOUT_S)
    sent = json.loads(stored)
    assert (sent["revision"], sent["system_prompt"]) == (7, "You know tower cranes.")
    assert sent["tools"]["allowed_tools"] == ["bash", "read_file", "web_fetch"]
    assert [rule["action"] for rule in sent["approval_policy"]] == ["auto", "deny"]
    assert sent["limits"]["max_cost_usd"] == 0.5
    assert "id" not in sent and sent["service"] == "banksman"


async def test_two_revisions_are_compared_and_the_earlier_one_is_restored(stage: Stage) -> None:
    assistants(stage)
    path = "context/assistants/cranes/revisions"
    older = {**ASSISTANT, "revision": 3, "system_prompt": "You know ships."}
    stage.resources |= {
        path: {
            "items": [
                {"revision": 7, "at": "2026-01-02T10:00:00Z", "by": "grace", "current": True},
                {"revision": 3, "at": None, "by": "", "current": False},
            ]
        },
        f"{path}/3": older,
        f"{path}/7": ASSISTANT,
        f"POST {path}/3/restore": {**older, "revision": 8},
    }
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/assistants/cranes")
        await page.get_by_text("Earlier revisions").click()
        difference = page.get_by_role("region", name="Differences")
        await expect(difference.locator(".row.removed")).to_contain_text("You know ships.")
        await expect(difference.locator(".row.added")).to_contain_text("You know cranes.")
        await page.get_by_role("button", name="Restore revision 3").click()
        await expect(page.get_by_role("textbox", name="Prompt")).to_have_value("You know ships.")
    assert f"{path}/3/restore" in stage.uploads


async def test_a_folder_is_added_as_a_skill(stage: Stage, tmp_path: Path) -> None:
    """R66: in the folder of skills, with executable scripts and with files that are no text."""
    assistants(stage)
    files = {"SKILL.md": b"# Cranes", "scripts/load.sh": b"#!/bin/sh\n", "logo.bin": b"\xff\x00"}
    for name, content in files.items():
        path = tmp_path / "cranes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/assistants/cranes")
        picker = page.get_by_label("Add a skill")
        await picker.set_input_files(tmp_path / "cranes" / "scripts")
        await expect(page.get_by_text("The folder scripts has no file SKILL.md")).to_be_visible()
        await picker.set_input_files(tmp_path / "cranes")
        await expect(page.get_by_text(".claude/skills/cranes/scripts/load.sh", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Save").click()
        stored = await eventually(lambda: stage.uploads.get("context/assistants/cranes"), WAIT_TIMEOUT_S)
    folder = ".claude/skills/cranes"
    assert sorted(json.loads(stored)["files"], key=lambda file: file["path"]) == [
        {"path": f"{folder}/SKILL.md", "content": "# Cranes"},
        {"path": f"{folder}/logo.bin", "content": "/wA=", "encoding": "base64"},
        {"path": f"{folder}/scripts/load.sh", "content": "#!/bin/sh\n", "executable": True},
    ]
