"""The card of what a server of tools asks: who asks, the form and the two outcomes, on a phone too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e import scenes
from tests.e2e.stage import Stage
from tests.support.browser import Look, opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "description": "Your full name"},
        "seats": {"type": "integer", "title": "Seats", "minimum": 1, "maximum": 9},
        "meal": {"type": "string", "title": "Meal", "enum": ["none", "vegetarian"]},
        "newsletter": {"type": "boolean", "title": "Newsletter"},
    },
    "required": ["name"],
}
ASKED = {
    "request_id": "i1",
    "message": "Please provide the details of the passenger for the booking of 3 March\u202e.",
    "schema": FORM,
    "server": "travel",
    "tool_call_id": "c1-r1-k1",
    "expires_at": "2099-01-01T00:00:00Z",
}


async def shown(page: Page, stage: Stage, name: str) -> Any:
    """Return the card; a variable of the environment names a folder for its picture."""
    await page.goto(f"{stage.url}/#/c/c1")
    card = page.get_by_role("group", name=name)
    await expect(card).to_be_visible()
    if folder := os.environ.get("SHOTS"):
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
    return card


async def reply(stage: Stage) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "input.reply"), None)

    return await eventually(found, WAIT_TIMEOUT_S)


def asks(stage: Stage) -> None:
    scenes.start(stage)
    scenes.reply(stage, "I book the seats.")
    stage.event("input.requested", ASKED)


async def test_a_question_on_a_phone_names_the_server_and_its_form_is_sent(stage: Stage) -> None:
    asks(stage)
    async with opened(stage.url, look=Look(width=390)) as page:
        card = await shown(page, stage, "Input requested")
        await expect(card).to_contain_text("travel")
        submit = card.get_by_role("button", name="Submit")
        await submit.click()
        await expect(card.get_by_role("textbox", name="Name")).to_be_focused()
        await card.get_by_role("textbox", name="Name").fill("Ada")
        await card.get_by_role("textbox", name="Seats").fill("2")
        if folder := os.environ.get("SHOTS"):
            await page.screenshot(path=Path(folder) / "filled.png", full_page=True)
        width = await page.evaluate("document.documentElement.scrollWidth")
        await submit.click()
        frame = await reply(stage)
        resolved = {"request_id": "i1", "by": "ada", "value": frame["value"]}
        await stage.send(stage.event("input.resolved", resolved))
        await expect(page.locator(".input-card.resolved")).to_contain_text("Ada")
        if folder := os.environ.get("SHOTS"):
            await page.screenshot(path=Path(folder) / "resolved.png", full_page=True)
    assert width <= 390
    assert (frame["request_id"], frame["value"]["name"], frame["value"]["seats"]) == ("i1", "Ada", 2)


async def test_a_question_is_declined_in_german(stage: Stage) -> None:
    asks(stage)
    async with opened(stage.url, look=Look(language="de-DE", theme="dark")) as page:
        card = await shown(page, stage, "Eingabe erbeten")
        await expect(card).to_contain_text("travel")
        await card.get_by_role("button", name="Ablehnen").click()
        frame = await reply(stage)
        resolved = {"request_id": "i1", "outcome": "declined", "by": "ada", "value": None}
        await stage.send(stage.event("input.resolved", resolved))
        await expect(page.locator(".input-card.resolved")).to_contain_text("Keine Angabe")
        if folder := os.environ.get("SHOTS"):
            await page.screenshot(path=Path(folder) / "declined.png", full_page=True)
    assert (frame["request_id"], frame["decline"], frame.get("value")) == ("i1", True, None)
