"""The page on a small phone, in both languages: no control is cut off, and nothing covers another one."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.e2e import scenes
from tests.e2e.run_scenes import OTHER_RUN, runs
from tests.e2e.stage import RUN, Stage
from tests.support.browser import opened

CUT_OFF = """() => [...document.querySelectorAll('button, .button')]
  .filter((one) => one.checkVisibility() && getComputedStyle(one).textOverflow !== 'ellipsis')
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.outerHTML.slice(0, 100))"""
OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll('.composer-row button')]
    .filter((one) => one.checkVisibility())
    .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()]);
  const least = document.querySelector('.composer-box').getBoundingClientRect();
  const outside = boxes.filter(([, box]) => box.right > least.right).map(([name]) => name);
  const covered = boxes.slice(1).filter(([, box], at) => box.left < boxes[at][1].right - 0.5);
  return [...outside, ...covered.map(([name]) => name)];
}"""
SIDEWAYS = """(selector) => [...document.querySelectorAll(selector)]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML.slice(0, 100))"""

CUT_BY = """(one) => {
  const wide = one.cloneNode(true);
  wide.style.cssText = 'position: absolute; width: max-content; max-width: none';
  one.after(wide);
  const missing = wide.getBoundingClientRect().width - one.getBoundingClientRect().width;
  wide.remove();
  return missing;
}"""


async def open_in(page: Page, language: str, address: str) -> None:
    await page.set_viewport_size({"width": 360, "height": 800})
    await page.evaluate("(language) => localStorage.setItem('banksman.language', language)", language)
    await page.goto(address)
    await page.reload()


@pytest.mark.parametrize("language", ["en", "de"])
async def test_a_request_is_read_and_decided_on_a_small_phone(stage: Stage, language: str) -> None:
    """R38: the lines of a diff wrap, and the controls of a running conversation have room."""
    stage.resources |= scenes.RESOURCES
    scenes.conversation(stage)
    async with opened(stage.url) as page:
        await open_in(page, language, f"{stage.url}/#/c/c1")
        await expect(page.locator(".approval.pending .diff").first).to_be_visible()
        assert await page.evaluate(SIDEWAYS, ".approval .diff pre") == []
        assert await page.evaluate(OVERLAPS) == []
        assert await page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("language", ["en", "de"])
async def test_a_step_of_a_run_fits_a_small_phone(stage: Stage, language: str) -> None:
    """R38: a long message of a model request ends in an ellipsis, and does not widen the view."""
    runs(stage)
    step = stage.resources[f"context/runs/{RUN}/steps/m1"]
    long = {"role": "user", "message_id": "u0", "content": "A long message " * 20}
    step["request"]["messages"] = [long, *step["request"]["messages"]]
    async with opened(stage.url) as page:
        await open_in(page, language, f"{stage.url}/#/runs/{RUN}/m1")
        await expect(page.locator(".step-messages")).to_be_visible()
        assert await page.evaluate(SIDEWAYS, ".scroller") == []


@pytest.mark.parametrize("language", ["en", "de"])
async def test_two_compared_runs_fit_a_small_phone(stage: Stage, language: str) -> None:
    """R38: the figures of both are beside each other, without scrolling."""
    runs(stage)
    async with opened(stage.url) as page:
        await open_in(page, language, f"{stage.url}/#/runs/{RUN}/with/{OTHER_RUN}")
        await expect(page.locator(".run-table tbody tr").first).to_be_visible()
        assert await page.evaluate(SIDEWAYS, ".scroller, .table-scroll") == []


@pytest.mark.parametrize("language", ["en", "de"])
async def test_the_action_of_a_rule_is_read_on_a_small_phone(stage: Stage, language: str) -> None:
    """R38: as wide as a list of the same options that nothing limits."""
    rules = [{"tool": "bash", "arguments": {"command": "rm *"}, "action": "deny"}]
    stage.resources["context/policy"] = {
        "id": "policy",
        "revision": 3,
        "rules": rules,
        "approvals": {"approvers": 1, "escalation": None},
    }
    async with opened(stage.url) as page:
        await open_in(page, language, f"{stage.url}/#/rules")
        action = page.locator(".policy select")
        await expect(action).to_have_value("deny")
        assert await action.evaluate(CUT_BY) <= 0


async def test_the_text_of_a_rule_has_room_beside_the_list_of_conversations(stage: Stage) -> None:
    """R38: on a tablet."""
    stage.resources["context/policy"] = {
        "id": "policy",
        "revision": 3,
        "rules": [{"tool": "bash", "arguments": {"command": "rm -rf build/*"}, "action": "ask"}],
        "approvals": {"approvers": 1, "escalation": None},
    }
    async with opened(stage.url) as page:
        await page.set_viewport_size({"width": 900, "height": 800})
        await page.goto(f"{stage.url}/#/rules")
        await expect(page.get_by_label("Text pattern")).to_have_value("rm -rf build/*")
        assert await page.evaluate(SIDEWAYS, ".policy input") == []


async def test_typed_text_is_shown_as_typed(stage: Stage) -> None:
    """An arrow in place of `->` would hide what a user approves."""
    async with opened(stage.url) as page:
        box = page.get_by_role("textbox", name="Message")
        assert await box.evaluate("(one) => getComputedStyle(one).fontVariantLigatures") == "none"
