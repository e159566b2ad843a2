"""The web page in a browser, with the whole system and the demo model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, WebSocketRoute, expect

from tests.e2e.navigating import open_view
from tests.support.browser import WAIT_TIMEOUT_MS, opened, send_message
from tests.support.polling import eventually
from tests.support.system import System

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
"""Seconds. The first test starts a system, which is slow on a busy machine."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """The system without a model key."""
    system = System(tmp_path_factory.mktemp("demo"), None, {"BANKSMAN_LOCAL__AGENTS": "1"})
    try:
        system.start()
        yield system
    finally:
        system.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(demo: System, browser: None) -> AsyncGenerator[Page]:
    """The open page. A page error or a request to another host fails the test."""
    async with opened(demo.url) as page:
        yield page


async def test_a_user_sends_a_message_approves_and_reads_the_report(page: Page, tmp_path: Path) -> None:
    """R12, R29, R38: list, report, approve twice, and read the file that was written."""
    await send_message(page, "list the files, then write a short report about them to report.md")

    for tool in ("bash", "write_file"):
        await expect(page.get_by_role("heading", name=f"Approve {tool}?")).to_be_visible(
            timeout=WAIT_TIMEOUT_MS
        )
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("heading", name=f"Approve {tool}?")).to_be_hidden(
            timeout=WAIT_TIMEOUT_MS
        )
    await expect(page.get_by_text("I wrote a report to")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await send_message(page, "read report.md")

    await expect(page.get_by_text("There are no files in the workspace.")).to_be_visible(
        timeout=WAIT_TIMEOUT_MS
    )


async def test_an_approval_request_survives_a_reload_and_a_rejection_is_shown(page: Page) -> None:
    """R13, R34: the card is shown again after a reload, and the rejection is shown."""
    await send_message(page, "run `touch never`")
    await expect(page.get_by_role("heading", name="Approve bash?")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await page.reload()
    await expect(page.get_by_role("heading", name="Approve bash?")).to_be_visible(timeout=WAIT_TIMEOUT_MS)

    await page.get_by_role("button", name="Reject and stop").click()

    await expect(page.get_by_text("rejected").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_a_request_of_one_page_is_decided_in_the_inbox_of_another(page: Page, demo: System) -> None:
    """R13, R34, R38: it appears there without a reload, and the decision appears on the first page."""
    async with opened(demo.url) as inbox:
        await inbox.goto(f"{demo.url}/#/approvals")
        await expect(inbox.get_by_role("heading", name="Approvals")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
        await send_message(page, "run `echo from the inbox`")

        item = inbox.locator(".inbox-item", has_text="echo from the inbox")
        await expect(item).to_be_visible(timeout=WAIT_TIMEOUT_MS)
        await expect(inbox).to_have_title(re.compile(r"^\(\d+\) Approvals"))
        await item.get_by_role("button", name="Approve").click()

        await expect(item).to_have_count(0, timeout=WAIT_TIMEOUT_MS)
        await expect(page.get_by_role("group", name="Decided approval request")).to_be_visible(
            timeout=WAIT_TIMEOUT_MS
        )
        await expect(page.get_by_role("heading", name="Approve bash?")).to_have_count(0)


async def test_an_operator_cancels_a_parked_run_and_the_trail_and_its_users_see_the_reason(
    page: Page, demo: System
) -> None:
    """R34: the operator need not know the conversation."""
    await send_message(page, "run `touch parked`")
    await expect(page.get_by_role("heading", name="Approve bash?")).to_be_visible()
    conversation = page.url.rpartition("/")[2]
    async with opened(demo.url) as operator:
        await open_view(operator, "Operations")
        rows = operator.get_by_role("region", name="Open runs").get_by_role("row", name=conversation)
        await rows.filter(has_text="Waits for approval").get_by_role("button", name="Stop run").click()
        await operator.get_by_label("Reason").fill("It blocks the release.")
        await operator.get_by_role("button", name="Stop the run").click()
        await expect(rows).to_have_count(0)

        await open_view(operator, "Audit trail")
        entry = operator.get_by_role("row", name=conversation).filter(has_text="stopped a run")
        await expect(entry).to_contain_text("reason: It blocks the release.")
    await expect(page.get_by_role("heading", name="Approve bash?")).to_have_count(0)
    await expect(page.get_by_text("It blocks the release.").first).to_be_visible()


@pytest.mark.parametrize("second", ["Approve", "Reject and stop"])
async def test_two_tabs_that_decide_at_once_show_the_one_decision_and_nothing_runs_twice(
    page: Page, demo: System, second: str
) -> None:
    """R13, R34: neither has seen the other's decision when it sends its own."""
    async with opened(demo.url) as other:
        replies = Barrier(2)
        for tab in (page, other):
            await tab.route_web_socket("**/ws", replies.hold)
            await tab.reload()
        await send_message(page, "run `echo once >> tally.txt`")
        await expect(page.get_by_role("heading", name="Approve bash?")).to_be_visible()
        conversation = page.url.rpartition("/")[2]
        await other.goto(page.url)
        await page.get_by_role("button", name="Approve").click()
        await other.get_by_role("button", name=second).click()

        for tab in (page, other):
            await expect(tab.locator("[data-status=completed], [data-status=rejected]")).to_have_count(1)
        shown = [
            await tab.get_by_role("group", name="Decided approval request").all_inner_texts()
            for tab in (page, other)
        ]
    assert (replies.held, len(shown[0]), shown[0]) == (2, 1, shown[1])
    async with httpx.AsyncClient(base_url=f"{demo.url}/context/conversations/{conversation}") as http:
        events = (await http.get("/events")).json()["items"]
        tally = await http.get("/files/tally.txt")
    [decision] = [event["data"] for event in events if event["type"] == "approval.resolved"]
    approved = decision["outcome"] == "approved"
    assert approved or second != "Approve"
    assert tally.text == "once\n" if approved else tally.status_code == 404


class Barrier:
    """Holds the decisions of pages until all have sent theirs."""

    def __init__(self, count: int) -> None:
        self.held = 0
        self._all = asyncio.Barrier(count)

    def hold(self, page: WebSocketRoute) -> None:
        """Connect a page with the gateway."""
        server = page.connect_to_server()

        async def forward(message: str | bytes) -> None:
            if json.loads(message)["type"] == "approval.reply":
                self.held += 1
                await self._all.wait()
            server.send(message)

        page.on_message(forward)


async def test_two_tabs_that_write_in_one_conversation_have_each_message_once_and_keep_their_drafts(
    page: Page, demo: System
) -> None:
    """R38: also messages that are sent at the same time; both show them in the same order."""
    await send_message(page, "hello")
    await expect(page.locator("[data-status=completed]")).to_have_count(1)
    async with opened(demo.url) as other:
        await other.goto(page.url)
        await expect(other.locator("[data-status=completed]")).to_have_count(1)
        async with asyncio.TaskGroup() as both:
            both.create_task(send_message(page, "hello from the first"))
            both.create_task(send_message(other, "hello from the second"))
        for tab in (page, other):
            await expect(tab.locator("[data-status=completed]")).to_have_count(3)
        box = page.get_by_role("textbox", name="Message")
        await box.fill("not sent yet")
        await send_message(other, "hello again")
        for tab in (page, other):
            await expect(tab.locator("[data-status=completed]")).to_have_count(4)
        await expect(box).to_have_value("not sent yet")
        shown = await eventually(lambda: _same_bubbles(page, other))
    assert (shown[0], shown[-1], sorted(shown[1:-1])) == (
        "hello",
        "hello again",
        ["hello from the first", "hello from the second"],
    )


async def test_a_workflow_is_selected_filled_in_and_run(page: Page) -> None:
    """R15, R22, R29, R38: by category, with a form, ending as a run."""
    await page.get_by_role("button", name="Workflows").click()
    await page.get_by_role("dialog").get_by_text("Create project").first.click()
    await page.get_by_label("name").first.fill("demo-project")

    await page.get_by_role("button", name="Start", exact=True).click()
    # Its calls need the same approval as those of a model; one request lists all files.
    await page.get_by_role("button", name="Approve").first.click(timeout=WAIT_TIMEOUT_MS)

    await expect(page.get_by_text("demo-project/README.md").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_an_edited_message_gets_a_reply_of_its_own_and_both_versions_stay(page: Page) -> None:
    """The agent continues the path that is shown, and the first version can be shown again."""
    await send_message(page, "hello there")
    await expect(page.locator("[data-status=completed]")).to_have_count(1, timeout=WAIT_TIMEOUT_MS)
    await page.locator(".run").hover()
    await page.get_by_role("button", name="Edit and send again").click()
    await page.get_by_role("textbox", name="Edit and send again").fill("hello again")
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_text("2/2")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await expect(page.locator("[data-status=completed]")).to_have_count(1, timeout=WAIT_TIMEOUT_MS)
    await expect(page.locator(".bubble")).to_have_text("hello again")

    await page.get_by_role("button", name="Previous version").click()
    await expect(page.locator(".bubble")).to_have_text("hello there")
    await page.get_by_role("link", name="Steps and cost").click()
    await page.locator(".step.model").get_by_role("link").click()
    await expect(page.locator(".step-messages .step-pre pre")).to_have_text("hello there")

    await page.get_by_role("button", name="Run again").click()
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.get_by_role("columnheader", name="demo:demo")).to_have_count(2, timeout=WAIT_TIMEOUT_MS)
    await page.get_by_role("link", name="Conversation", exact=True).click()
    await expect(page.get_by_text("3/3")).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_a_message_is_scheduled_run_now_paused_and_deleted(page: Page, demo: System) -> None:
    """R38: its run is linked, and everything is still there after a reload."""
    await open_view(page, "Schedules")
    await page.get_by_role("button", name="New schedule").click()
    await page.get_by_label("Name").fill("Morning report")
    await page.get_by_label("Repeats").select_option("weekly")
    await page.get_by_role("combobox", name=re.compile("^Day")).select_option("Wednesday")
    await page.get_by_label("Time zone").fill("Europe/Berlin")
    await page.get_by_label("Message to an agent").last.fill("say good morning")
    await page.get_by_role("button", name="Create schedule").click()

    schedule = page.get_by_role("region", name="Morning report")
    await expect(schedule).to_contain_text("Every Wednesday at 09:00 (Europe/Berlin)")
    coming = page.get_by_role("region", name="The next two weeks").get_by_role("button")
    await expect(coming.first).to_contain_text("Morning report")
    await schedule.get_by_role("button", name="Run now: Morning report").click()
    await expect(schedule.get_by_text("Last run:")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await schedule.get_by_role("button", name="Pause").click()
    await expect(schedule.get_by_role("button", name="Resume")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
    await expect(coming).to_have_count(0)
    await page.reload()
    await schedule.get_by_text("Last runs").click()
    await schedule.get_by_role("listitem").get_by_role("link").click()
    await expect(page.get_by_text("say good morning").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)

    await page.goto(f"{demo.url}/#/schedules")
    await schedule.get_by_role("button", name="Delete: Morning report").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("There are no schedules yet.")).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def test_a_workflow_is_built_run_and_scheduled_on_the_page_and_is_there_after_a_restart(
    page: Page, demo: System
) -> None:
    """R15, R22, R41, R112: from a prompt, a tool, a request for a value and an approval, without code."""
    await open_view(page, "Workflows")
    await page.get_by_role("link", name="New workflow").click()
    await page.get_by_label("Name").fill("Plan a version")
    await page.get_by_role("button", name="Add a field").click()
    await page.get_by_label("Label").fill("Version")
    await page.get_by_role("button", name="Add a prompt").click()
    await _step(page, 1).get_by_label("What should the agent do?").fill("Give me two ideas for ")
    await _step(page, 1).get_by_role("button", name="parameters.version").click()
    await page.get_by_role("button", name="Add a tool").click()
    await _step(page, 2).get_by_role("combobox").select_option("write_file")
    await _step(page, 2).get_by_role("textbox", name="path").fill("PLAN.md")
    content = _step(page, 2).locator(".form-field", has=page.get_by_role("textbox", name="content"))
    await content.get_by_role("button", name="steps.prompt1").click()
    await page.get_by_role("button", name="Add a question").click()
    await _step(page, 3).get_by_label("What do you ask the user?").fill("Who leads it?")
    await page.get_by_role("button", name="Add an approval").click()
    await _step(page, 4).get_by_label("What should the user approve?").fill("Send it to ")
    await _step(page, 4).get_by_role("button", name="steps.input1").click()
    await page.get_by_label("What the user reads").fill("The plan is with ")
    await page.get_by_role("button", name="steps.input1").last.click()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Plan a version")).to_be_visible()

    await open_view(page, "Workflows")
    await page.get_by_role("button", name="Start Plan a version").click()
    await page.get_by_role("textbox", name="Version").fill("2.1")
    await page.get_by_role("button", name="Start", exact=True).click()
    await page.get_by_role("group", name="Approve write_file?").get_by_role("button", name="Approve").click()
    question = page.get_by_role("group", name="Input requested")
    await question.filter(has_text="Who leads it?").get_by_role("textbox").fill("Grace")
    await question.get_by_role("button", name="Submit").click()
    await question.filter(has_text="Send it to Grace").get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("The plan is with Grace")).to_be_visible()
    conversation = page.url

    await open_view(page, "Schedules")
    await page.get_by_role("button", name="New schedule").click()
    await page.get_by_label("What runs").select_option("Plan a version")
    await page.get_by_label("When, in words").fill("every Monday at 8:30")
    await page.get_by_role("textbox", name="Version").fill("2.2")
    await page.get_by_role("button", name="Create schedule").click()
    await expect(page.get_by_role("region", name="Plan a version")).to_be_visible()

    demo.stop()
    demo.start()

    await page.goto(f"{demo.url}/#/schedules")
    await page.reload()
    await expect(page.get_by_role("region", name="Plan a version")).to_contain_text("Every Monday at 08:30")
    await open_view(page, "Workflows")
    await page.get_by_role("main").get_by_role("link", name="Plan a version").click()
    await expect(page.get_by_role("listitem", name=re.compile("^Step "))).to_have_count(4)
    await page.goto(conversation)
    await expect(page.get_by_text("The plan is with Grace")).to_be_visible()
    await page.get_by_role("button", name="Files", exact=True).click()
    await expect(page.get_by_role("complementary", name="Files")).to_contain_text("PLAN.md")


def _step(page: Page, number: int) -> Locator:
    return page.get_by_role("listitem", name=f"Step {number}")


async def _same_bubbles(page: Page, other: Page) -> list[str] | None:
    """Return the messages that both tabs show in the same order; a tab may draw the last event later."""
    one, two = [await tab.locator(".bubble").all_inner_texts() for tab in (page, other)]
    return one if one == two else None
