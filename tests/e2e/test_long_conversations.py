"""What a long conversation and a long reply cost: only what is near the view is drawn and laid out."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import WAIT_TIMEOUT_MS, Look, opened
from tests.support.polling import eventually

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

RUNS = 400
MESSAGES = 2_000


def _write_runs(stage: Stage, count: int, **settings: Any) -> None:
    """Append runs of a message and a reply; `settings` are of the last one's start."""
    for number in range(count):
        run = f"c1-r{number}"
        begun = {"message_id": f"m{number}", "message": f"Question {number}", "model": "demo:model"}
        more = settings if number == count - 1 else {}
        stage.event("run.started", begun | more, run_id=run)
        reply = {"message_id": f"a{number}", "role": "assistant", "content": scenes.REPLY}
        stage.event("message.completed", reply, run_id=run)
        stage.event("run.finished", {"status": "completed", "content": scenes.REPLY}, run_id=run)


async def _top_of(page: Page, message: str) -> float:
    """Return the position of a message once it has not moved for ten frames: runs near the view are drawn."""
    return await page.locator(f"[data-message={message}]").evaluate(
        """async (one) => {
          let [top, still] = [NaN, 0];
          while (still < 10) {
            await new Promise(requestAnimationFrame);
            const now = one.getBoundingClientRect().top;
            [top, still] = [now, now === top ? still + 1 : 0];
          }
          return top;
        }"""
    )


async def test_the_newest_messages_are_shown_before_the_earlier_ones_are_read(stage: Stage) -> None:
    """R34: the end stays in view when the earlier ones arrive, and the cost is shown when it is complete."""
    _write_runs(stage, RUNS)
    stage.reads_events.clear()
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        newest = page.locator(f"[data-message=a{RUNS - 1}]")
        await expect(newest).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator(".run")).to_have_count(20)
        # A version of the first of them would need the run before it.
        first = page.locator(".run").first
        await page.get_by_text("Loading earlier messages").scroll_into_view_if_needed()
        await expect(page.locator(f"[data-message=m{RUNS - 19}]").get_by_role("button")).not_to_have_count(0)
        await expect(first.locator(".turn.user").get_by_role("button")).to_have_count(0)
        await page.get_by_role("button", name="Latest").click()
        await expect(newest).to_be_in_viewport()
        top = await _top_of(page, f"a{RUNS - 1}")
        stage.reads_events.set()
        await expect(page.locator(".run")).to_have_count(RUNS)
        await expect(page.get_by_text("Loading earlier messages")).to_have_count(0)
        assert abs(await _top_of(page, f"a{RUNS - 1}") - top) < 1
        assert len([one for one in stage.received if one["type"] == "subscribe"]) == 1


SCROLLS = {True: "(scroller) => scroller.scrollTo(0, 0)", False: "(run) => run.scrollIntoView()"}


@pytest.mark.parametrize("at_top", [True, False], ids=["at the top", "in the middle"])
async def test_what_a_person_reads_stays_in_place_when_earlier_messages_arrive(
    stage: Stage, at_top: bool
) -> None:
    _write_runs(stage, RUNS)
    stage.reads_events.clear()
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        read = f"m{RUNS - 20 if at_top else RUNS - 10}"
        await expect(page.locator(f"[data-message=a{RUNS - 1}]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        place = ".scroller" if at_top else f"[data-run=c1-{read.replace('m', 'r')}]"

        async def has_left_the_end() -> bool:
            # Until the newest runs have their height, the end is kept in view.
            await page.locator(place).evaluate(SCROLLS[at_top])
            return await page.get_by_role("button", name="Latest").is_visible()

        await eventually(has_left_the_end)
        await expect(page.locator(f"[data-message={read}]")).to_be_in_viewport()
        top = await _top_of(page, read)
        stage.reads_events.set()
        await expect(page.locator(".run")).to_have_count(RUNS)
        await expect(page.locator(f"[data-message={read}]")).to_be_in_viewport()
        assert abs(await _top_of(page, read) - top) < 2


async def test_a_branch_from_an_earlier_message_is_shown_before_that_message_is_read(stage: Stage) -> None:
    _write_runs(stage, RUNS, branch={"after": "a5"})
    stage.reads_events.clear()
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(f"[data-message=a{RUNS - 1}]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator(".run")).to_have_count(1)
        stage.reads_events.set()
        await expect(page.locator(".run")).to_have_count(7)
        await expect(page.get_by_text("2/2")).to_be_visible()
        await expect(page.locator(f"[data-message=a{RUNS - 1}]")).to_be_in_viewport()


async def test_earlier_messages_are_read_again_after_a_failure(stage: Stage) -> None:
    _write_runs(stage, RUNS)
    path = "GET context/conversations/c1/events"
    stage.failures[path] = (503, {"code": "unavailable", "message": "No broker.", "retryable": True})
    async with opened(stage.url) as page:
        async with page.expect_response(lambda response: response.status == 503):
            await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(f"[data-message=a{RUNS - 1}]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.get_by_text("Loading earlier messages")).to_have_count(1)
        del stage.failures[path]
        await expect(page.locator(".run")).to_have_count(RUNS, timeout=WAIT_TIMEOUT_MS)


async def test_a_found_message_among_the_earlier_ones_is_shown_at_once(stage: Stage) -> None:
    """The end is not shown before: the person asked for another place."""
    _write_runs(stage, RUNS)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1/a7")
        await expect(page.locator("[data-message=a7]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator(".run")).to_have_count(RUNS)
    subscribed = [frame for frame in stage.received if frame["type"] == "subscribe"]
    assert ["newest_runs" in frame for frame in subscribed] == [False]


@pytest.mark.parametrize("width", [390, 1280])
async def test_a_person_scrolls_to_the_first_of_two_thousand_messages(stage: Stage, width: int) -> None:
    """Task 33, by keyboard: the first message comes into view and stays there."""
    _write_runs(stage, MESSAGES // 2)
    async with opened(stage.url, look=Look(width=width)) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(".run")).to_have_count(MESSAGES // 2, timeout=WAIT_TIMEOUT_MS)
        await page.locator(".scroller").focus()
        await page.keyboard.press("Home")
        first = page.locator("[data-message=m0]")
        await expect(first).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator("[data-message=a0]")).to_be_in_viewport()
        await expect(first).to_be_in_viewport()
        await page.get_by_role("button", name="Latest").click()
        newest = page.locator(f"[data-message=a{MESSAGES // 2 - 1}]")
        await expect(newest).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)


async def test_a_long_conversation_opens_at_its_end_and_draws_only_runs_near_it(stage: Stage) -> None:
    """R34: runs that arrive on the way to the newest one are not drawn."""
    _write_runs(stage, RUNS)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        newest = page.locator(f"[data-message=a{RUNS - 1}]")
        await expect(newest).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator(".run.far")).not_to_have_count(0)
        assert await page.locator(".run-body").count() < 20
        # An earlier run is drawn once it comes into view.
        await page.locator(".scroller").evaluate("(scroller) => scroller.scrollTo(0, 0)")
        await expect(page.locator("[data-message=a0]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)


MOVED_UP_AND_GROWN = """async (scroller) => {
  const box = document.createElement('div');
  box.style.height = '900px';
  scroller.scrollTop -= 500;
  scroller.firstElementChild.append(box);
  for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
}"""


async def test_only_a_person_leaves_the_end_while_the_height_of_the_content_changes(stage: Stage) -> None:
    """Heights that were estimated become known, and then the browser moves the view."""
    _write_runs(stage, 40)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator("[data-message=a39]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await _top_of(page, "a39")
        scroller, latest = page.locator(".scroller"), page.get_by_role("button", name="Latest")
        await scroller.evaluate(MOVED_UP_AND_GROWN)
        assert await scroller.evaluate("(one) => one.scrollHeight - one.clientHeight - one.scrollTop") < 2
        await expect(latest).to_have_count(0)
        await scroller.hover()
        await page.mouse.wheel(0, -10)
        await scroller.evaluate(MOVED_UP_AND_GROWN)
        await expect(latest).to_be_visible()


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


async def test_the_search_of_the_browser_finds_a_run_that_is_not_drawn(stage: Stage) -> None:
    """A text fragment searches as Ctrl+F does, which no test can press. The hit stays where it is shown."""
    _write_runs(stage, RUNS)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(".run")).to_have_count(RUNS, timeout=WAIT_TIMEOUT_MS)
        await expect(page.locator("[data-message=m37]")).to_have_count(0)
        await page.goto(f"{stage.url}/#/c/c1:~:text=Question%2037")
        await expect(page.locator("[data-message=m37]")).to_be_in_viewport(timeout=WAIT_TIMEOUT_MS)
        await _top_of(page, "m37")
        await expect(page.locator("[data-message=m37]")).to_be_in_viewport()
        # A person who scrolls, or goes to the end, is not held at the hit.
        await page.get_by_role("button", name="Latest").press("Enter")
        await expect(page.locator(f"[data-message=a{RUNS - 1}]")).to_be_in_viewport()
        await _top_of(page, f"a{RUNS - 1}")
        await expect(page.locator(f"[data-message=a{RUNS - 1}]")).to_be_in_viewport()


async def test_what_messages_need_is_loaded_while_their_conversation_is_read(stage: Stage) -> None:
    """R34: at an address of a conversation, not after its messages arrived or when the page is idle."""
    async with opened(stage.url) as page:
        await page.goto("about:blank")
        await page.add_init_script("requestIdleCallback = () => 0")
        await page.route_web_socket("**/*", lambda _: None)
        await page.goto(f"{stage.url}/#/c/c1")
        await page.wait_for_function(
            "() => performance.getEntriesByType('resource').some((one) => one.name.endsWith('/marked.mjs'))"
        )
