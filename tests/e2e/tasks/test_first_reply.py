"""Task 1: a new user without a key of a model, on a system of its own."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from playwright.async_api import expect

from tests.e2e.tasks.people import Office, Way, ways
from tests.support.system import ScriptedModel, System

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, axe: str) -> Generator[Office]:
    """The system as the commands of the README start it."""
    system = System(tmp_path_factory.mktemp("fresh"), None, {"BANKSMAN_LOCAL__AGENTS": "1"})
    try:
        system.start()
        yield Office(system, ScriptedModel(""), axe)
    finally:
        system.close()


@ways()
async def test_a_new_user_gets_a_reply_and_approves_a_command(fresh: Office, way: Way) -> None:
    """Task 1: an example fills the message box; the command that it leads to waits for approval."""
    async with fresh.person(way, token=None) as me:
        await me.press(me.page.get_by_role("button", name=me.t("welcome.list")))
        await me.reach(me.composer)
        await me.page.keyboard.press("Enter")
        await me.press(me.button("approval.approve", me.card))
        await me.ended()
        await expect(me.page.locator(".turn.assistant .prose").last).not_to_be_empty()
