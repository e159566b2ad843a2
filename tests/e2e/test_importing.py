"""Import of a conversation on the page."""

from __future__ import annotations

import json

from playwright.async_api import FilePayload, expect

from tests.e2e.scenes import finish, reply, start
from tests.e2e.stage import Stage
from tests.support.browser import opened


async def test_an_exported_conversation_is_imported_and_shown(stage: Stage) -> None:
    start(stage)
    reply(stage, "It is 40 t.")
    finish(stage)
    stage.resources["POST context/conversations/import"] = {"conversation_id": "c1"}
    export = {"conversation": {"title": "Cranes"}, "events": stage.frames}
    file: FilePayload = {
        "name": "c.json",
        "mimeType": "application/json",
        "buffer": json.dumps(export).encode(),
    }
    async with opened(stage.url) as page:
        picker = page.locator("#import-file")
        await picker.set_input_files([{**file, "buffer": b"# Cranes"}])
        await expect(page.get_by_text("This file is not JSON.")).to_be_visible()
        await picker.set_input_files([file])
        await expect(page.get_by_text("It is 40 t.")).to_be_visible()
        assert page.url.endswith("#/c/c1")
    sent = json.loads(stage.uploads["context/conversations/import"])
    assert (sent["conversation"], len(sent["events"])) == ({"title": "Cranes"}, 3)
