"""Files of a message: picked, pasted or dropped."""

from __future__ import annotations

import base64
from typing import Any

from playwright.async_api import FilePayload, expect

from tests.e2e.scenes import PIXEL
from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

PASTE = """async () => {
  const canvas = new OffscreenCanvas(2400, 1800);
  const context = canvas.getContext('2d');
  for (let y = 0; y < 1800; y += 8) for (let x = 0; x < 2400; x += 8) {
    context.fillStyle = `hsl(${(x * y) % 360} 80% 50%)`;
    context.fillRect(x, y, 8, 8);
  }
  const data = new DataTransfer();
  data.items.add(new File([await canvas.convertToBlob()], 'image.png', { type: 'image/png' }));
  const target = document.getElementById('composer');
  target.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }));
}"""

DROP = """() => {
  const data = new DataTransfer();
  data.items.add(new File(['32 t'], 'south.txt', { type: 'text/plain' }));
  const target = document.querySelector('.log');
  const init = { dataTransfer: data, bubbles: true, cancelable: true };
  return ['dragover', 'drop'].map((type) => target.dispatchEvent(new DragEvent(type, init)));
}"""
"""Drops a file on the conversation; returns whether the browser would open it."""


async def test_picked_pasted_and_dropped_files_are_stored_and_sent_with_the_message(stage: Stage) -> None:
    def sent() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "chat.send"), None)

    stage.resources["context/conversations/c1/files"] = {"items": [{"path": "uploads/a b.txt"}]}
    async with opened(stage.url, bypass_csp=True) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        picked: FilePayload = {"name": "a b.txt", "mimeType": "text/plain", "buffer": b"40 t"}
        dot: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(PIXEL)}
        await page.locator(".composer input[type=file]").set_input_files([picked, dot])
        await page.evaluate(PASTE)
        assert await page.evaluate(DROP) == [False, False]
        await expect(page.locator(".attached-file")).to_have_count(4)
        await page.get_by_role("textbox", name="Message").fill("What is this?")
        await page.keyboard.press("Enter")
        content = (await eventually(sent, WAIT_TIMEOUT_S))["content"]
        await expect(page.locator(".attached-file")).to_have_count(0)
    assert [part["type"] for part in content] == ["text", "file", "image", "file", "file", "file"]
    assert content[1]["path"] == "uploads/a b-2.txt"
    assert stage.uploads["context/conversations/c1/files/uploads/a b-2.txt"] == b"40 t"
    assert stage.uploads["context/conversations/c1/files/uploads/image.png"].startswith(b"\x89PNG")
    assert stage.uploads["context/conversations/c1/files/uploads/south.txt"] == b"32 t"
    assert content[2]["url"] == f"data:image/png;base64,{PIXEL}"
    assert [part["path"] for part in content[3:]] == [
        "uploads/dot.png",
        "uploads/image.png",
        "uploads/south.txt",
    ]


async def test_images_and_files_of_a_message_are_shown(stage: Stage) -> None:
    message = [
        {"type": "text", "text": "Look"},
        {"type": "image", "url": f"data:image/png;base64,{PIXEL}"},
        {"type": "image", "url": "https://evil.example/leak.png"},
        {"type": "file", "path": "uploads/a.txt"},
        {"type": "file", "path": "uploads/shot.png"},
    ]
    stage.resources["context/conversations/c1/files/uploads/shot.png"] = base64.b64decode(PIXEL)
    stage.event("run.started", {"message_id": "u1", "message": message, "model": "demo:model"})
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(".bubble")).to_have_text("Look")
        await expect(page.locator(".message-images img")).to_have_count(2)
        stored = page.get_by_role("img", name="uploads/shot.png")
        assert await stored.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
        await expect(page.get_by_role("button", name="uploads/a.txt")).to_be_visible()
