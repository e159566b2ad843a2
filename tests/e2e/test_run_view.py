"""The view of one run: its steps, their requests and costs."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.e2e.run_scenes import OTHER_RUN, runs
from tests.e2e.stage import RUN, Stage
from tests.support.browser import opened


async def _go(page: Page, address: str) -> None:
    await page.evaluate("address => { location.hash = address }", address)


async def test_a_run_shows_its_cost_and_the_request_of_the_step_that_caused_it(stage: Stage) -> None:
    runs(stage)
    async with opened(stage.url, bypass_csp=True) as page:
        await _go(page, f"#/runs/{RUN}")
        await expect(page.get_by_text("95 % of the cost is")).to_be_visible()
        await page.get_by_role("button", name="By cost").click()
        await expect(page.locator(".step").first).to_contain_text("41,300 in")
        await page.locator(".step", has_text="1,850 in").get_by_role("link").click()
        detail = page.get_by_role("region", name="Step", exact=True)
        await expect(detail.locator(".step-messages pre")).to_have_text("How large is the load?")
        await detail.get_by_text("System prompt").click()
        await expect(detail.get_by_text("You are a helpful agent.")).to_be_visible()
        assert page.url.endswith(f"#/runs/{RUN}/m1")
        await page.keyboard.press("Escape")
        await expect(detail).to_be_hidden()


async def test_two_runs_are_compared(stage: Stage) -> None:
    runs(stage)
    async with opened(stage.url, bypass_csp=True) as page:
        await _go(page, f"#/runs/{RUN}")
        await page.get_by_label("Compare with").select_option(OTHER_RUN)
        row = page.get_by_role("row").filter(
            has=page.get_by_role("rowheader", name="Input tokens", exact=True)
        )
        await expect(row).to_contain_text("39,350 (\N{MINUS SIGN}91 %)")
        assert page.url.endswith(f"#/runs/{RUN}/with/{OTHER_RUN}")
