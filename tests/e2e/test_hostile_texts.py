"""Texts that a model or a command chooses keep the page usable, behind a scripted gateway."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage, open_conversation
from tests.support.browser import WAIT_TIMEOUT_MS, opened

pytestmark = pytest.mark.timeout(180)
"""Seconds; a browser starts slowly on a busy machine."""

SLOW_MARKDOWN = {
    "emphasis": "a_b_" * 20_000,
    "emphasis before dots": "a.*" * 12_000,
    "strikes": "~a~~" * 36_000,
    "brackets": "![" * 60_000,
    "an address": "a." * 40_000 + "@",
    "spaces": "a" + " " * 100_000 + "b",
    "lines": "a\n" * 100_000,
    "maths": "\\[\n" * 40_000,
    "quotations": "> " * 3_000 + "a",
    "lists": "* " * 3_000 + "a",
}
"""The grammar takes ten seconds to minutes for each, or ends with an error."""
MAX_FREEZE_MS = 5_000
"""On an idle machine the page is not free for half a second; other tests may run beside this one."""
OBSERVE = """() => {
  let last = performance.now();
  window.longest = 0;
  const tick = () => {
    window.longest = Math.max(window.longest, performance.now() - last);
    last = performance.now();
    setTimeout(tick);
  };
  tick();
}"""


async def _longest_freeze_ms(page: Page) -> float:
    return await page.evaluate("async () => (await new Promise((done) => setTimeout(done)), window.longest)")


@pytest.mark.parametrize("name", SLOW_MARKDOWN)
async def test_no_text_of_a_model_freezes_the_page(stage: Stage, name: str) -> None:
    """R34: what takes too long to be read as Markdown is shown as it was written."""
    scenes.start(stage)
    scenes.reply(stage, "Ready.")
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.get_by_text("Ready.")).to_be_visible()
        await page.evaluate(OBSERVE)
        scenes.reply(stage, SLOW_MARKDOWN[name])
        scenes.reply(stage, "Still **here**.")
        await stage.send(*stage.frames[-2:])
        await expect(page.get_by_text("Still here.")).to_be_visible()
        assert await _longest_freeze_ms(page) < MAX_FREEZE_MS


async def test_code_that_takes_a_minute_to_colour_freezes_nothing_and_delays_no_other_code(
    stage: Stage,
) -> None:
    """R34: a worker colours code, also in a list, and is ended at a deadline."""
    scenes.start(stage)
    hostile = "a\n" * 24_000
    scenes.reply(stage, f"```csharp\n{hostile}```\n\n1. Then:\n\n   ```python\n   def load(): pass\n   ```\n")
    async with opened(stage.url) as page:
        await page.evaluate(OBSERVE)
        await open_conversation(page, stage)
        await page.evaluate(OBSERVE)
        await expect(page.locator("li .hljs-keyword").first).to_have_text("def", timeout=2 * WAIT_TIMEOUT_MS)
        await expect(page.locator(".code .hljs-keyword")).to_have_count(0)
        assert await _longest_freeze_ms(page) < MAX_FREEZE_MS


async def test_lines_of_a_megabyte_are_cut_where_they_are_shown(stage: Stage) -> None:
    """R34: in a message of each side, in code, and in the arguments and the output of a call."""
    long = "x" * 1_000_000
    scenes.start(stage, long)
    arguments = {"command": f"echo {long}"}
    scenes.call(stage, "k1", "bash", arguments, exit_code=0, content={"stdout": f"{long}\nlast"})
    scenes.reply(stage, f"{long}\n\n```\n{long}\n```")
    scenes.finish(stage, content="")
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.get_by_role("button", name="1 tool call: bash").click()
        await page.get_by_role("group", name="Tool call bash").get_by_role("button").first.click()
        await expect(page.get_by_role("group", name="Tool call bash")).to_contain_text("last")
        shown = await page.locator(".log").inner_text()
        assert len(shown) < 50_000
        assert shown.count("more characters") == 5


@pytest.mark.parametrize("event", [{"isComposing": True}, {"keyCode": 229}])
async def test_enter_ends_a_composition_and_sends_nothing(stage: Stage, event: dict[str, Any]) -> None:
    """R34: Safari reports the key after the composition, with the code 229."""
    async with opened(stage.url) as page:
        box = page.get_by_role("textbox", name="Message")
        await box.fill("にほんご")
        await box.dispatch_event("keydown", {"key": "Enter", "bubbles": True, "cancelable": True, **event})
        await expect(box).to_have_value("にほんご")
        await box.press("Enter")
        await expect(box).to_have_value("")


@pytest.mark.parametrize("width", [390, 1280])
async def test_a_message_about_an_error_does_not_cover_the_button_that_sends(
    stage: Stage, width: int
) -> None:
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": width, "height": 800})
        await page.get_by_role("textbox", name="Message").fill("How large is the load?")
        await stage.send({"type": "error", "code": "storage_full", "message": "The disk is full."})
        await expect(page.get_by_role("alert").filter(has_text="The disk is full.")).to_be_visible()
        await page.get_by_role("button", name="Send").click(trial=True)
        boxes = [
            await page.locator(selector).bounding_box() for selector in (".toast", ".composer-box", ".header")
        ]
        toast, composer, header = [box for box in boxes if box]
        assert header["y"] + header["height"] <= toast["y"]
        assert toast["y"] + toast["height"] <= composer["y"]


async def test_a_diagram_that_cannot_be_drawn_names_its_line(stage: Stage) -> None:
    """R34: without the text of the library."""
    scenes.start(stage)
    scenes.reply(stage, "```mermaid\nflowchart LR\n  A --> --> B\n```")
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.get_by_text("could not be drawn: line 2 is not valid.")).to_be_visible()
        await expect(page.get_by_text("Parse error")).to_have_count(0)
