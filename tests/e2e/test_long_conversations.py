"""What a long conversation and a long reply cost: only what is near the view is drawn and laid out."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import WAIT_TIMEOUT_MS, opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

RUNS = 400


async def test_a_long_conversation_opens_at_its_end_and_draws_only_runs_near_it(stage: Stage) -> None:
    """R34: runs that arrive on the way to the newest one are not drawn."""
    for number in range(RUNS):
        run = f"c1-r{number}"
        begun = {"message_id": f"m{number}", "message": f"Question {number}", "model": "demo:model"}
        stage.event("run.started", begun, run_id=run)
        reply = {"message_id": f"a{number}", "role": "assistant", "content": scenes.REPLY}
        stage.event("message.completed", reply, run_id=run)
        stage.event("run.finished", {"status": "completed", "content": scenes.REPLY}, run_id=run)

    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        newest = page.locator(f"[data-message=a{RUNS - 1}]")
        await expect(newest).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator(".run.far")).not_to_have_count(0)
        assert await page.locator(".run-body").count() < 20
        # An earlier run is drawn once it comes into view.
        await page.locator(".scroller").evaluate("(scroller) => scroller.scrollTo(0, 0)")
        await expect(page.locator("[data-message=a0]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)


async def test_a_long_reply_is_laid_out_where_it_is_in_view_and_reads_an_image_once(stage: Stage) -> None:
    """R34: also while the reply is written, so that its length does not slow typing."""
    scenes.start(stage)
    scenes.reply(stage, scenes.REPLY * 30)
    async with opened(stage.url) as page:
        read: list[str] = []
        page.on("request", lambda request: read.append(request.url) if "load.png" in request.url else None)
        await page.goto(f"{stage.url}/#/c/c1")
        headings = page.get_by_role("heading", name="Result")
        await expect(headings).to_have_count(30, timeout=WAIT_TIMEOUT_MS)
        last = page.get_by_text("A quotation.").last
        await expect(last).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        is_laid_out = "(heading) => heading.checkVisibility({ contentVisibilityAuto: true })"
        assert not await headings.first.evaluate(is_laid_out)
        await headings.first.scroll_into_view_if_needed()
        await page.wait_for_function(is_laid_out, arg=await headings.first.element_handle())
        assert len(read) == 1
