"""Every view of the page under the rules of axe-core, in both themes and at three widths; target sizes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from playwright.async_api import Page, expect

from tests.e2e import mcp_scenes, scenes
from tests.e2e.assistant_scenes import assistants
from tests.e2e.navigating import open_view
from tests.e2e.run_scenes import OTHER_RUN, runs
from tests.e2e.stage import RUN, Stage, open_conversation
from tests.e2e.test_rules import POLICY, REMEMBERED
from tests.e2e.test_workspace_forms import OPTIONS
from tests.e2e.workflow_scenes import BUILT
from tests.support.browser import WAIT_TIMEOUT_MS, opened

pytestmark = pytest.mark.timeout(240)
"""Seconds; a scan takes a second on a busy machine."""

WIDTHS = (390, 1024, 1440)
TOUCH_WIDTHS = (390, 1024)
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
ALL: tuple[tuple[int, Theme], ...] = tuple((width, theme) for width in WIDTHS for theme in THEMES)
SHORT: tuple[tuple[int, Theme], ...] = ((390, "light"), (1024, "dark"))
TARGET_PX = 44

FINDINGS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ['violations'] });
  const describe = (node) => `${node.target} ${node.any[0]?.message ?? ''}`;
  return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(describe).join('; ')}`);
}"""

SMALL_TARGETS = """(least) => {
  const isShown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const inText = (element) => element.matches('.prose a, .prose a *');
  const isBox = (element) => element.matches('input[type=checkbox]');
  const targetOf = (element) => (isBox(element) ? element.closest('label') ?? element : element);
  return [...document.querySelectorAll('a, button, input, select, textarea, summary')]
    .filter((element) => isShown(element) && !inText(element) && !element.matches('.skip, .prose input'))
    .map((element) => [element, targetOf(element).getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.width < least - 0.5 || box.height < least - 0.5))
    .map(([element, box]) => `${element.outerHTML.slice(0, 100)} ${box.width}x${box.height}`);
}"""

SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until a new theme or width is drawn: without motion, a transition takes one frame."""

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

View = Callable[[Page, Stage], Awaitable[None]]


async def welcome(page: Page, stage: Stage) -> None:
    stage.notices = ("The demo model replies: no key is set.",)
    await page.goto(stage.url)
    await expect(page.get_by_role("heading", name="What should the agent do?")).to_be_visible()


async def repository(page: Page, stage: Stage) -> None:
    stage.resources["context/workspace-options"] = OPTIONS
    await page.get_by_role("button", name="Start from a repository").click()
    await expect(page.get_by_text("Allowed by the operator")).to_be_visible()


async def conversation(page: Page, stage: Stage) -> None:
    scenes.conversation(stage)
    await open_conversation(page, stage)
    await expect(page.locator("math").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)


async def details(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Details").click()
    await page.locator(".tool-head").first.click()


async def editing(page: Page, stage: Stage) -> None:
    for button in await page.locator(".approval .edit").all():
        await button.click()
    await page.get_by_role("button", name="Add a reason").click()


async def files(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Files", exact=True).click()
    await expect(page.get_by_text("load.py").last).to_be_visible()


async def preview(page: Page, stage: Stage) -> None:
    await page.locator(".file").last.click()
    await expect(page.locator(".preview-body")).to_be_visible()


async def workflow_list(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Close files").click()
    await page.get_by_role("button", name="Workflows").click()
    await expect(page.get_by_text("Inspect a crane")).to_be_visible()


async def form(page: Page, stage: Stage) -> None:
    await page.get_by_text("Inspect a crane").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("No Crane")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.get_by_text("Must be 1 to 20 of: lower-case letters.")).to_be_visible()


async def menu(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Close", exact=True).click()
    await page.get_by_role("button", name="Conversation actions").click()


async def rename(page: Page, stage: Stage) -> None:
    await page.get_by_role("menuitem", name="Rename").click()


async def delete(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Cancel").click()
    await menu_again(page)
    await page.get_by_role("menuitem", name="Delete").click()


async def menu_again(page: Page) -> None:
    await page.get_by_role("button", name="Conversation actions").click()


async def refused(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Cancel").click()
    stage.refused["run.cancel"] = {"code": "conflict", "message": "The run has ended."}
    await page.get_by_role("button", name="Stop", exact=True).first.click()
    await expect(page.locator(".toast")).to_be_visible()


async def inbox(page: Page, stage: Stage) -> None:
    stage.resources["context/approvals"] = {"items": [scenes.pending(1), scenes.pending(2)]}
    await page.goto(f"{stage.url}/#/approvals")
    await page.reload()
    await page.get_by_label("Choose Crane 1").check()


async def people(page: Page, stage: Stage) -> None:
    stage.resources["context/identity-providers"] = {"items": [scenes.PROVIDER]}
    await open_view(page, "People")
    await expect(page.get_by_role("cell", name="grace laptop")).to_be_visible()


async def own_key(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Invite a person").click()
    await page.get_by_label("Your name or e-mail address").fill("ada")


async def own_key_created(page: Page, stage: Stage) -> None:
    stage.resources["POST context/keys"] = {**scenes.KEY, "user": "ada", "key": "bk-" + "1" * 40}
    await page.get_by_role("button", name="Create my key").click()
    await expect(page.get_by_role("button", name="I have stored it")).to_be_visible()


async def invitation(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="I have stored it").click()
    await page.get_by_label("Name or e-mail address", exact=True).fill("linus")


async def account_invitation(page: Page, stage: Stage) -> None:
    await page.get_by_label("signs in with").select_option("an account at id.example.org/acme")
    await expect(page.get_by_text("leads", exact=True)).to_be_visible()


async def invited(page: Page, stage: Stage) -> None:
    await page.get_by_label("signs in with").select_option("a key")
    stage.resources["POST context/keys"] = {**scenes.KEY, "user": "linus", "key": "bk-" + "0" * 40}
    await page.get_by_role("button", name="Create the link").click()
    await expect(page.get_by_text("It is shown only now")).to_be_visible()


async def schedules(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Done").click()
    await open_view(page, "Schedules")
    await expect(page.get_by_text("Monday to Friday at 09:00")).to_be_visible()


async def new_schedule(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="New schedule").click()
    await page.get_by_label("Repeats").select_option("weekly")


async def operations(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Close").click()
    await open_view(page, "Operations")
    await expect(page.get_by_text("Runs for agents")).to_be_visible()


async def cancellation(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Stop run c2-r1").click()
    await page.get_by_role("dialog").get_by_label("Reason").fill("It blocks the release.")


async def letter(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Keep the run").click()
    await page.get_by_role("button", name="Show message 8").click()
    await expect(page.get_by_role("group", name="Content")).to_be_visible()


async def mcp_servers(page: Page, stage: Stage) -> None:
    stage.resources |= mcp_scenes.RESOURCES
    await page.goto(f"{stage.url}/#/mcp")
    await expect(page.get_by_text("Needs a sign-in")).to_be_visible()


async def new_mcp_server(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Add a server").click()
    await page.get_by_label("Where it runs").select_option("stdio")
    await page.get_by_role("button", name="Add a variable").click()


async def mcp_server(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.url}/#/mcp/issues")
    await expect(page.locator(".diff")).to_be_visible()


async def changed_mcp_server(page: Page, stage: Stage) -> None:
    error = {"code": "bad_request", "message": "url must match …", "field": "transport.url"}
    stage.failures["PUT context/mcp-servers/issues"] = (400, error)
    await page.get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox", name="Address").fill("https://other.example.org/mcp")
    await dialog.get_by_label("Value").fill("new")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()


async def audit(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.url}/#/audit")
    await expect(page.get_by_text("created a key")).to_be_visible()


async def decided(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.url}/#/decided")
    await expect(page.get_by_text("git push")).to_be_visible()


async def settings(page: Page, stage: Stage) -> None:
    await open_view(page, "Settings")
    await expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()


async def palette(page: Page, stage: Stage) -> None:
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("combobox", name="Search and commands")).to_be_visible()


async def one_run(page: Page, stage: Stage) -> None:
    runs(stage)
    await page.keyboard.press("Escape")
    await page.goto(f"{stage.url}/#/runs/{RUN}")
    await expect(page.locator(".step")).to_have_count(5)


async def one_step(page: Page, stage: Stage) -> None:
    await page.locator(".step a").first.click()
    await expect(page.locator(".step-messages")).to_be_visible()


async def two_runs(page: Page, stage: Stage) -> None:
    await page.get_by_label("Compare with").select_option(OTHER_RUN)
    await expect(page.get_by_role("columnheader", name="Difference")).to_be_visible()


async def assistant(page: Page, stage: Stage) -> None:
    assistants(stage)
    await page.goto(f"{stage.url}/#/assistants/cranes")
    await page.get_by_role("textbox", name="Name", exact=True).fill("Tower cranes")
    await expect(page.locator(".diff")).to_be_visible()


async def rules(page: Page, stage: Stage) -> None:
    stage.resources |= {"context/policy": POLICY, "context/remembered": {"items": [REMEMBERED]}}
    await page.goto(f"{stage.url}/#/rules")
    await expect(page.get_by_role("button", name="Withdraw")).to_be_visible()


async def workflows(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.url}/#/workflows")
    await expect(page.get_by_role("link", name="New workflow")).to_be_visible()


async def built_workflow(page: Page, stage: Stage) -> None:
    stage.resources |= {"workflows/announce": BUILT}
    await page.goto(f"{stage.url}/#/workflows/announce")
    await expect(page.get_by_role("listitem", name="Step 3")).to_be_visible()


async def models(page: Page, stage: Stage) -> None:
    await page.get_by_role("button", name="Model:").click()
    await expect(page.get_by_text("400,000 tokens of context")).to_be_visible()


async def ended(page: Page, stage: Stage) -> None:
    stage.frames.clear()
    scenes.ended(stage)
    await page.keyboard.press("Escape")
    await open_conversation(page, stage)


async def login(page: Page, stage: Stage) -> None:
    stage.token = "right"
    await page.reload()
    await page.get_by_label("Key").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_text("The key is wrong or has expired.")).to_be_visible()


VIEWS: tuple[View, ...] = (
    welcome, repository, conversation, details, editing, files, preview, workflow_list, form, menu, rename,
    delete, refused, inbox, people, own_key, own_key_created, invitation, account_invitation, invited,
    schedules, new_schedule, operations, cancellation, letter, mcp_servers, new_mcp_server, mcp_server,
    changed_mcp_server, audit, decided, settings, palette, one_run, one_step, two_runs, rules, workflows,
    built_workflow, assistant, models, ended, login,
)  # fmt: skip
"""Each begins where the one before it ended."""


async def findings(page: Page, axe: str) -> list[str]:
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(axe)
    return list(await page.evaluate(FINDINGS))


async def test_no_view_breaks_a_rule_of_accessibility_in_either_theme(stage: Stage, axe: str) -> None:
    """R38: `make accessibility` scans every combination, the suite one of each theme for each view."""
    chosen = ALL if os.environ.get("BANKSMAN_ACCESSIBILITY") == "all" else SHORT
    stage.resources |= scenes.RESOURCES
    wrong: dict[str, Any] = {}
    async with opened(stage.url) as page:
        for view in VIEWS:
            await page.set_viewport_size({"width": 1440, "height": 860})
            await view(page, stage)
            for width, theme in chosen:
                await page.set_viewport_size({"width": width, "height": 860})
                await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
                await page.evaluate(SETTLED)
                found = await findings(page, axe)
                if width in TOUCH_WIDTHS:
                    found += await page.evaluate(SMALL_TARGETS, TARGET_PX)
                if await page.evaluate(OVERFLOW) > 0:
                    found.append("wider than the window")
                wrong |= {f"{view.__name__} {width} {theme}": found} if found else {}
    assert wrong == {}
