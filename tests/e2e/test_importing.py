"""Export and import of conversations on the page."""

from __future__ import annotations

import json
import os
from typing import Any

from playwright.async_api import FilePayload, expect

from tests.e2e.scenes import finish, reply, start
from tests.e2e.stage import Stage
from tests.support.browser import opened

PATH = "context/conversations/import"


def _file(content: Any, name: str = "c.json") -> FilePayload:
    return {"name": name, "mimeType": "application/json", "buffer": json.dumps(content).encode()}


def _item(**fields: Any) -> dict[str, Any]:
    item = {"title": "Cranes", "product": "banksman", "conversation_id": "c1", "runs": 1}
    return {**item, "left_out": {}, "error": None, **fields}


async def test_an_exported_conversation_is_imported_with_its_files_and_says_so(stage: Stage) -> None:
    start(stage)
    reply(stage, "It is 40 t.")
    finish(stage)
    for frame in stage.frames:
        frame["imported"] = True
    stage.resources[f"POST {PATH}?start=0"] = stage.resources[f"POST {PATH}"] = {
        "items": [_item()],
        "next": None,
    }
    stage.resources["PUT context/conversations/c1/files/plan.txt"] = {"path": "plan.txt", "size": 4}
    data = "data:application/octet-stream;base64,cGxhbg=="
    export = {"conversation": {}, "events": stage.frames, "files": [{"path": "plan.txt", "data": data}]}
    async with opened(stage.url) as page:
        await page.locator("#import-file").set_input_files([_file(export)])
        await expect(page.get_by_text("It is 40 t.")).to_be_visible()
        await expect(page.get_by_text("Imported from a file.")).to_be_visible()
        assert page.url.endswith("#/c/c1")
    assert json.loads(stage.uploads[PATH]) == export
    assert stage.uploads["context/conversations/c1/files/plan.txt"] == b"plan"


async def test_a_file_of_several_conversations_shows_a_result_for_each(stage: Stage, axe: str) -> None:
    """In both themes, at 390 and 1280 px, and in German."""
    items = [
        _item(title="Cranes", product="chatgpt", runs=12, left_out={"hologram": 1, "image": 2}),
        _item(
            title="Broken", product="", conversation_id=None, runs=0, error="chat_messages.0: Field required"
        ),
        _item(title="", product="claude"),
    ]
    stage.resources[f"POST {PATH}"] = {"items": items, "next": None}
    for scheme, width, language in (("light", 1280, "en"), ("dark", 390, "de")):
        async with opened(stage.url, bypass_csp=True) as page:
            await page.set_viewport_size({"width": width, "height": 800})
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await page.evaluate("language => localStorage.setItem('banksman.language', language)", language)
            await page.reload()
            await page.locator("#import-file").set_input_files([_file([])])
            dialog = page.get_by_role("dialog")
            found = "Imported 2 of 3." if language == "en" else "2 von 3 importiert."
            await expect(dialog.get_by_role("status")).to_have_text(found)
            missing = "hologram, images (2)" if language == "en" else "hologram, Bilder (2)"
            await expect(dialog.get_by_text(missing)).to_be_visible()
            await expect(dialog.get_by_text("chat_messages.0: Field required")).to_be_visible()
            await page.evaluate(axe)
            violations = await page.evaluate("async () => (await axe.run()).violations.map((one) => one.id)")
            assert violations == []
            if folder := os.environ.get("SCREENSHOTS"):
                await page.screenshot(path=f"{folder}/import-{scheme}.png")
            await dialog.get_by_role("link", name="Cranes").click()
            await expect(dialog).to_have_count(0)


async def test_a_refused_file_is_named(stage: Stage) -> None:
    error = {"message": "file must be JSON of exported conversations", "code": "bad_request"}
    stage.failures[f"POST {PATH}"] = (400, error)
    async with opened(stage.url) as page:
        await page.locator("#import-file").set_input_files([_file("x")])
        await expect(page.get_by_text("file must be JSON of exported conversations")).to_be_visible()
