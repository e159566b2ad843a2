"""Versions of a message: edit and send again, another reply, and earlier ones that stay."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from tests.e2e.stage import Stage
from tests.support.browser import opened, send_message
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


def _turn(stage: Stage, number: int, text: str, **more: Any) -> None:
    run = f"c1-r{number}"
    started = {"message_id": f"u{number}", "message": text, "model": "demo:model", **more}
    stage.event("run.started", started, run_id=run)
    reply = {"message_id": f"a{number}", "role": "assistant", "content": f"Reply to {text}"}
    stage.event("message.completed", reply, run_id=run)
    ended = {"status": "completed", "content": reply["content"], "model": "demo:model", "iterations": 1}
    stage.event("run.finished", ended, run_id=run)


async def _sent(stage: Stage, count: int) -> dict[str, Any]:
    def newest() -> dict[str, Any] | None:
        sent = [frame for frame in stage.received if frame["type"] == "chat.send"]
        return sent[-1] if len(sent) == count else None

    return await eventually(newest, WAIT_TIMEOUT_S)


async def test_a_message_is_edited_in_its_place_and_the_first_version_can_be_continued(stage: Stage) -> None:
    _turn(stage, 1, "One")
    _turn(stage, 2, "Two")
    _turn(stage, 3, "Second", branch={"after": "a1"})
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.get_by_text("Reply to Second")).to_be_visible()
        await expect(page.get_by_text("Reply to Two")).to_be_hidden()
        await page.get_by_role("button", name="Previous version").click()
        await expect(page.get_by_text("Reply to Two")).to_be_visible()
        await expect(page.get_by_text("Reply to Second")).to_be_hidden()

        await send_message(page, "Three")
        assert (await _sent(stage, 1))["branch"] == {"after": "a2"}

        await page.locator("[data-run=c1-r1] .bubble").hover()
        await page.locator("[data-run=c1-r1]").get_by_role("button", name="Edit and send again").click()
        await page.get_by_role("textbox", name="Edit and send again").fill("One, edited")
        await page.keyboard.press("Control+Enter")
        edited = await _sent(stage, 2)
        assert (edited["content"], edited["branch"]) == ("One, edited", {"after": None})


async def test_another_reply_and_a_continuation_name_the_message_that_they_follow(stage: Stage) -> None:
    _turn(stage, 1, "One")
    _turn(stage, 2, "Two")
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await page.locator("[data-run=c1-r2]").get_by_role("button", name="Get another reply").click()
        again = await _sent(stage, 1)
        assert (again["content"], again["branch"]) == ("Two", {"after": "a1"})

        await page.locator("[data-run=c1-r1]").get_by_role("button", name="Continue from here").click()
        await expect(page.get_by_text("Your next message follows an earlier reply.")).to_be_visible()
        await send_message(page, "Other")
        assert (await _sent(stage, 2))["branch"] == {"after": "a1"}
        await send_message(page, "Next")
        assert "branch" not in await _sent(stage, 3)
