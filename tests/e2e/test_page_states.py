"""The views and requests of the page, in states that a scripted gateway sets."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage, open_conversation
from tests.support.browser import WAIT_TIMEOUT_MS, opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""


FETCHED = """() => performance.getEntriesByType('resource')
  .filter((entry) => entry.transferSize > 0)
  .map(({ name }) => name)"""


async def test_a_reload_fetches_no_file_again(stage: Stage) -> None:
    """R38: only the page itself and its data."""
    async with opened(stage.url) as page:
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        first = [name for name in await page.evaluate(FETCHED) if "/static/" in name]
        await page.wait_for_load_state("networkidle")
        await page.reload()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        again = [name for name in await page.evaluate(FETCHED) if "/static/" in name]
    assert first != []
    assert again == []


SCROLL_UP = """async () => {
  const scroller = document.querySelector('.scroller');
  for (let step = 0; step < 60; step += 1) {
    scroller.scrollTop -= scroller.clientHeight;
    await new Promise((drawn) => requestAnimationFrame(drawn));
  }
}"""
PAINTED = """() => [...document.querySelectorAll('.run:not(.far)')]
  .filter((run) => run.firstElementChild?.checkVisibility({ contentVisibilityAuto: true })).length"""


async def test_a_long_conversation_draws_the_runs_that_come_near_the_view(stage: Stage) -> None:
    """R38: 2,000 messages open at their end; opening and scrolling draw only the runs in view."""
    for number in range(1000):
        run = f"c1-r{number}"
        stage.event("run.started", {"message_id": f"m{number}", "message": f"Question {number}."}, run_id=run)
        stage.event("run.finished", {"status": "completed", "content": f"Reply {number}."}, run_id=run)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.get_by_text("Reply 999.")).to_be_in_viewport()
        await expect(page.locator(".run")).to_have_count(1000)
        assert await page.locator(".run:not(.far)").count() < 100

        await page.evaluate(SCROLL_UP)
        # Drawn runs stay in the document, for a search and a selection, and are not painted.
        await eventually(lambda: _drawn(page, more_than=100))
        await eventually(lambda: _painted(page, less_than=60))
        await expect(page.get_by_text("Question 995.")).to_have_count(1)

        await page.locator("[data-run=c1-r500]").scroll_into_view_if_needed()
        await expect(page.get_by_text("Reply 500.")).to_be_in_viewport()
        await expect(page.get_by_text("Question 499.")).to_be_visible()


async def _drawn(page: Page, *, more_than: int) -> bool:
    return await page.locator(".run:not(.far)").count() > more_than


async def _painted(page: Page, *, less_than: int) -> bool:
    return await page.evaluate(PAINTED) < less_than


async def sent(stage: Stage, type: str) -> dict[str, object]:
    """Wait for a frame of the page."""

    def found() -> dict[str, object] | None:
        return next((frame for frame in stage.received if frame["type"] == type), None)

    return await eventually(found, WAIT_TIMEOUT_S)


async def test_a_request_opens_at_its_top_and_keys_decide_only_what_is_visible(stage: Stage) -> None:
    """R13: it does not take the focus, and a key shows the first hidden call instead of deciding."""
    scenes.start(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.get_by_role("textbox", name="Message").focus()
        before = len(stage.frames)
        scenes.request_approval(stage, *(scenes.command(number) for number in range(6)))
        await stage.send(*stage.frames[before:])
        card = page.get_by_role("group", name="Approve 6 tool calls?")
        await expect(card.get_by_role("heading", name="Approve 6 tool calls?")).to_be_in_viewport(ratio=1)
        await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
        await page.get_by_role("textbox", name="Message").blur()
        await page.keyboard.press("a")
        await card.focus()
        await page.keyboard.press("a")
        await expect(card.locator("[data-call=k1], [data-call=k2]").last).to_be_in_viewport(ratio=0.9)
        assert [frame for frame in stage.received if frame["type"] == "approval.reply"] == []

        await page.set_viewport_size({"width": 1280, "height": 2400})
        stage.refused["approval.reply"] = {"code": "conflict", "message": "It lists other calls."}
        await page.keyboard.press("a")

        reply = await sent(stage, "approval.reply")
        await expect(card.get_by_text("It lists other calls.")).to_be_visible()
    assert (reply["all"], reply["digests"]) == ("approve", [f"digest-of-k{number}" for number in range(6)])


async def test_the_content_of_a_write_is_edited_as_text_and_its_diff_follows(stage: Stage) -> None:
    """R14: no escaped JSON."""
    scenes.start(stage)
    scenes.request_approval(stage, scenes.write("notes.md", "one\ntwo\n", 'one\n"two"\n'))
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.get_by_role("button", name="Edit").click()
        content = page.get_by_role("textbox", name="Content")
        await expect(content).to_have_value('one\n"two"\n')
        await content.fill("one\ntwo\nthree\n")
        await expect(page.locator(".diff .row.added")).to_have_text("+three")
        await page.get_by_role("button", name="Approve").click()
        reply = await sent(stage, "approval.reply")
    edited = {"path": "notes.md", "content": "one\ntwo\nthree\n"}
    assert reply["decisions"] == [{"tool_call_id": "w1", "decision": "approve", "arguments": edited}]


async def test_a_successful_workflow_shows_neither_failures_nor_json(stage: Stage) -> None:
    """R15: its look-up of a missing file is no failure, and its result is shown as names and values."""
    scenes.start(stage, "Create project\nName: demo", model="workflow:create_project")
    scenes.call(stage, "r1", "read_file", {"path": "x"}, is_error=True, error_kind="tool_error")
    scenes.reply(stage, '{"folder": "demo", "files": ["a", "b"]}')
    scenes.finish(stage, content='{"folder": "demo", "files": ["a", "b"]}')
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.get_by_text("1 tool call: read_file")).to_be_visible()
        await expect(page.locator(".turn.assistant dt")).to_have_text(["Folder", "Files"])
        shown = await page.locator(".run").inner_text()
    assert "failed" not in shown.lower() and "{" not in shown


async def test_a_rejection_is_no_failure_and_an_ending_is_stated_once(stage: Stage) -> None:
    """R12: the run ends with one sentence, and its call counts as rejected."""
    scenes.start(stage)
    rejected = {"is_error": True, "error_kind": "rejected"}
    scenes.call(stage, "r1", "bash", {"command": "rm x"}, **rejected)
    text = "The run was stopped because of a rejected call: bash."
    scenes.finish(stage, "rejected", text, {"code": "rejected", "message": text})
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.locator(".status")).to_have_text("1 rejected")
        shown = await page.locator(".run").inner_text()
    assert shown.count(text) == 1 and "failed" not in shown


async def test_stopped_text_stays_and_its_cancellation_is_stated_once(stage: Stage) -> None:
    """R37: the text is marked where it was stopped."""
    scenes.ended(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        run = page.locator(".run").first
        await expect(run.get_by_text("The first half of a")).to_be_visible()
        shown = await run.inner_text()
    assert (shown.count("Stopped"), shown.count("cancelled")) == (1, 0)


async def test_maths_and_images_are_drawn_and_no_address_of_the_model_is_requested(stage: Stage) -> None:
    """R36, R38: images of the workspace and of the text; `opened` fails on a request to another host."""
    scenes.conversation(stage)
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await expect(page.locator("math mfrac")).to_have_count(1, timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator("annotation")).to_have_count(0)
        for name in ("A chart", "Inline"):
            await expect(page.get_by_role("img", name=name)).to_have_js_property("naturalWidth", 1)
        await expect(page.get_by_role("link", name="Elsewhere")).to_have_count(1)
        await expect(page.get_by_role("img", name="Elsewhere")).to_have_count(0)


async def test_a_page_whose_module_does_not_arrive_is_loaded_again(stage: Stage) -> None:
    """R38: the network may change while it loads. After three attempts the page says so."""
    async with opened(stage.url) as page:
        lost = 0

        async def lose(route: Route) -> None:
            nonlocal lost
            lost += 1
            await (route.abort() if lost < 3 else route.continue_())

        await page.route("**/router.mjs", lose)
        await page.reload()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        assert lost == 3
        await page.unroute("**/router.mjs")
        await page.route("**/router.mjs", lambda route: route.abort())
        await page.reload()
        await expect(page.get_by_text("Banksman could not be loaded.")).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_the_page_shows_how_long_a_run_waits_for_its_model(stage: Stage) -> None:
    stage.event("run.started", {"message_id": "m1", "message": "hello", "model": "openai:gpt-5"})
    stage.event("iteration.started", {"n": 1, "max": 10})
    pause = {
        "model": "openai:gpt-5",
        "reason": "overloaded",
        "error": "529",
        "attempt": 1,
        "next_attempt_s": 90,
    }
    live = {"conversation_id": "c1", "run_id": "c1-r1", "ts": "2026-11-28T20:00:00+00:00"}
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await stage.send({"type": "model.waiting", "data": {**pause, "next_attempt_s": 90}, **live})
        waiting = page.get_by_role("status").filter(has_text="The model is overloaded; next attempt in")
        await expect(waiting).to_contain_text("90 s")
        # It counts down without another notice.
        await expect(waiting).to_contain_text("88 s")
        piece = {"message_id": "a1", "offset": 0, "text": "Here I am."}
        await stage.send({"type": "message.delta", "data": piece, **live})
        await expect(waiting).to_have_count(0)


async def test_the_menu_of_a_conversation_compacts_it_and_shows_the_result(stage: Stage) -> None:
    stage.event("run.started", {"message_id": "m1", "message": "hello"})
    stage.event("run.finished", {"status": "completed", "content": "Hello."})
    async with opened(stage.url) as page:
        await open_conversation(page, stage)
        await page.get_by_role("button", name="Conversation actions").first.click()
        await page.get_by_role("menuitem", name="Summarise now").click()
        await eventually(lambda: "context/conversations/c1/compact" in stage.uploads, WAIT_TIMEOUT_S)
        started = {"message_id": "m2", "message": "Compact the conversation.", "compact": True}
        text = "A summary replaces the older messages: 9,000 → 800 tokens."
        await stage.send(
            stage.event("run.started", started, run_id="c1-r2"),
            stage.event("run.finished", {"status": "completed", "content": text}, run_id="c1-r2"),
        )
        await expect(page.get_by_text(text)).to_be_visible()
        await expect(page.get_by_text("Summarise now")).to_be_visible()
        await expect(page.get_by_text("Compact the conversation.")).to_have_count(0)


async def test_an_idle_visible_page_notices_a_frozen_gateway_within_five_seconds(stage: Stage) -> None:
    async with opened(stage.url) as page:
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        stage.frozen = True
        await expect(page.locator(".banner.warning")).to_be_visible(timeout=5_000)
