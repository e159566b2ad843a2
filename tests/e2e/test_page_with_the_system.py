"""A person at the page: the whole system behind it, with the demo model, as a newcomer starts it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect
from tests.support.system import System

pytestmark = pytest.mark.timeout(240)
"""Seconds: each starts systems of its own, which takes its time on a busy machine."""

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-sync"]
WAIT_TIMEOUT_MS = 15_000


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """The system without any key."""
    system = System(tmp_path_factory.mktemp("demo"), None)
    try:
        system.start()
        yield system
    finally:
        system.close()


@pytest.fixture
async def page(demo: System) -> AsyncGenerator[Page]:
    """The page, open; any error in it or any request to another host fails the test."""
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((demo.url, "data:", "blob:", "about:"))
                else wrong.append(request.url)
            ),
        )
        page.set_default_timeout(WAIT_TIMEOUT_MS)
        await page.goto(demo.url)
        yield page
        await browser.close()
    assert wrong == []


async def say(page: Page, text: str) -> None:
    """Write a message and send it."""
    box = page.get_by_role("textbox", name="Message")
    await box.fill(text)
    await box.press("Enter")


async def test_a_person_asks_approves_and_reads_the_report_back(page: Page, tmp_path: Path) -> None:
    """R12, R29, R38: list, report, approve twice, and read the file that was written."""
    await say(page, "list the files, then write a short report about them to report.md")

    for tool in ("bash", "write_file"):
        await expect(page.get_by_role("heading", name=f"Allow {tool}?")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("heading", name=f"Allow {tool}?")).to_be_hidden(timeout=WAIT_TIMEOUT_MS)
    await expect(page.get_by_text("I wrote a report to")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await say(page, "read report.md")

    await expect(page.get_by_text("There are no files in the workspace.")).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_a_question_survives_a_reload_and_a_rejection_is_shown(page: Page) -> None:
    """R13, R34: the card comes back with the page, and rejecting says so."""
    await say(page, "run `touch never`")
    await expect(page.get_by_role("heading", name="Allow bash?")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await page.reload()
    await expect(page.get_by_role("heading", name="Allow bash?")).to_be_visible(timeout=WAIT_TIMEOUT_MS)

    await page.get_by_role("button", name="Reject").click()

    await expect(page.get_by_text("rejected").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_a_workflow_is_chosen_filled_in_and_run(page: Page) -> None:
    """R15, R22, R29, R38: by category, with a form, ending as a run."""
    await page.get_by_role("button", name="Workflows").click()
    await page.get_by_text("Create project").first.click()
    await page.get_by_label("name").first.fill("demo-project")

    await page.get_by_role("button", name="Start", exact=True).click()

    await expect(page.get_by_text("demo-project/README.md").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)
