"""Measure the page in Chromium: frames and typing during a streamed reply, and opening a long conversation.

Run: python -m benchmarks.page

Prints one JSON object. Typing is the time from a key to the next frame. `main_thread_s` is the CPU time of
the page's main thread, which depends least on other load: compare two states of the page by it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from benchmarks.harness.system import model_server, running
from playwright.async_api import Page, expect
from tests.e2e import scenes
from tests.e2e.stage import RUN, Stage, open_conversation, staged
from tests.support.browser import opened, shared_browser
from tests.support.polling import eventually

TOKENS_PER_S = 5_000
CHARACTERS_PER_TOKEN = 4
PIECE_S = 0.02
"""Interval of the pieces in which an agent sends text."""
SECONDS = 5
MESSAGES = 2_000
EVENTS = 2 * MESSAGES
"""Stored events of so many imported messages."""
SENDERS = ("human", "assistant")
FRAMES = """async (seconds) => {
  const box = document.getElementById('composer');
  const typed = [];
  let [frames, next] = [0, 0];
  const end = performance.now() + 1000 * seconds;
  await new Promise((done) => {
    const frame = (now) => {
      frames += 1;
      if (now > end) return done();
      if (now > next) {
        next = now + 100;
        setTimeout(() => {
          const began = performance.now();
          box.value += 'a';
          box.dispatchEvent(new InputEvent('input', { bubbles: true }));
          requestAnimationFrame(() => setTimeout(() => typed.push(performance.now() - began)));
        }, Math.random() * 50);
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  typed.sort((a, b) => a - b);
  return { frames_per_s: frames / seconds, typing_p95_ms: typed[Math.floor(0.95 * typed.length)] };
}"""

NEWEST = f"Message {MESSAGES - 1}"
CLICK = """(conversation) => {
  location.hash = `#/c/${conversation}`;
  return performance.now() / 1000;
}"""
UNTIL_SHOWN = """async (text) => {
  const isShown = () => {
    const last = [...document.querySelectorAll('.turn.assistant')].at(-1);
    const { top, bottom } = last?.getBoundingClientRect() ?? {};
    return last?.textContent.includes(text) && last.querySelector('h2') && bottom > 0 && top < innerHeight;
  };
  while (!isShown()) await new Promise(requestAnimationFrame);
  return performance.now() / 1000;
}"""
"""Returns the seconds from the start of loading the page until a message is shown, with its Markdown."""


async def streaming(stage: Stage) -> dict[str, Any]:
    """Stream a reply of headings, prose, lists, tables and code while a user types."""
    scenes.start(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        cpu = await _cpu(page)
        writing = asyncio.create_task(_write(stage))
        measured = await page.evaluate(FRAMES, SECONDS)
        characters = await writing
        await expect(page.locator(".turn.assistant hr, .turn.assistant .code").first).to_be_visible()
        return {**measured, "characters": characters, "main_thread_s": await cpu()}


async def _cpu(page: Page) -> Callable[[], Awaitable[float]]:
    """Return a function that returns the CPU seconds of the page's main thread since this call."""
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def total() -> float:
        metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    begin = await total()

    async def since() -> float:
        return await total() - begin

    return since


async def _write(stage: Stage) -> int:
    size = round(TOKENS_PER_S * CHARACTERS_PER_TOKEN * PIECE_S)
    text = scenes.REPLY * (1 + TOKENS_PER_S * CHARACTERS_PER_TOKEN * SECONDS // len(scenes.REPLY))
    began = time.monotonic()
    offset = 0
    while time.monotonic() < began + SECONDS:
        piece = {"message_id": "a1", "offset": offset, "text": text[offset : offset + size]}
        await stage.send({"type": "message.delta", "conversation_id": "c1", "run_id": RUN, "data": piece})
        offset += size
        await asyncio.sleep(max(0, began + offset / size * PIECE_S - time.monotonic()))
    return offset


async def imported(url: str) -> str:
    """Import a conversation of many messages into a running system; return its id once it is stored."""
    sent = [
        {
            "uuid": f"m{at}",
            "sender": ("human", "assistant")[at % 2],
            "text": f"Message {at}\n\n{scenes.REPLY}",
        }
        for at in range(MESSAGES)
    ]
    export = [{"uuid": "c1", "name": "Long", "chat_messages": sent}]
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        stored = (await http.post("/context/conversations/import", json=export)).raise_for_status()
        conversation = stored.json()["items"][0]["conversation_id"]

        async def is_stored() -> bool | None:
            read = await http.get(f"/context/conversations/{conversation}/events", params={"limit": 1})
            return read.json()["head_seq"] >= EVENTS or None

        await eventually(is_stored, 60)
    return conversation


async def loading(url: str, conversation: str) -> dict[str, float]:
    """Load the address of a conversation without a cache, and again with it, until its newest is shown."""
    async with opened(f"{url}/#/c/{conversation}", also=url) as page:
        first_s = await page.evaluate(UNTIL_SHOWN, NEWEST)
        await page.reload()
        return {"loading_s": first_s, "reloading_s": await page.evaluate(UNTIL_SHOWN, NEWEST)}


async def opening(url: str, conversation: str) -> dict[str, float]:
    """Open a conversation of a running system at its newest, and scroll to its first message."""
    async with opened(url) as page:
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        cpu = await _cpu(page)
        clicked_s = await page.evaluate(CLICK, conversation)
        shown_s = await page.evaluate(UNTIL_SHOWN, NEWEST) - clicked_s
        found = {"opening_s": shown_s, "opening_main_thread_s": await cpu()}
        await expect(page.locator(".earlier")).to_have_count(0)
        found["complete_main_thread_s"] = await cpu()
        return found | {"first_message_s": await _until_first(page)}


async def _until_first(page: Page) -> float:
    """Return the seconds until the first message is in view, for a user who presses Home."""
    began = time.monotonic()
    first = page.locator(".bubble").filter(has_text="Message 0 ")
    await page.locator(".scroller").focus()
    await page.keyboard.press("Home")
    await expect(first).to_be_in_viewport(timeout=60_000)
    return time.monotonic() - began


async def main() -> None:
    """Print the measurements as JSON."""
    async with shared_browser():
        async with staged() as stage:
            result = await streaming(stage)
        with model_server() as model, running(model) as system:
            conversation = await imported(system.url)
            result |= await loading(system.url, conversation)
            result |= await opening(system.url, conversation)
    json.dump({name: round(value, 3) for name, value in result.items()}, sys.stdout, indent=2)


if __name__ == "__main__":
    asyncio.run(main())
