"""Each reason of a service that users read on the page has a stable code with a text in each language."""

from __future__ import annotations

from typing import get_args

import pytest
from playwright.async_api import Page, expect

from banksman.contracts.administration import CheckName
from banksman.contracts.errors import ErrorCode
from banksman.contracts.mcp import McpProblem
from banksman.contracts.tools import ErrorKind
from banksman.gateway.operation.errors import METHOD_NOT_ALLOWED, UNKNOWN_URL
from tests.e2e import mcp_scenes, scenes
from tests.e2e.catalogues import catalogues
from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

CODES = {
    "reason": (*ErrorCode, UNKNOWN_URL, METHOD_NOT_ALLOWED),
    "tool.kind": get_args(ErrorKind),
    "operator.check": (*get_args(CheckName), "draining"),
    "mcp.problem": get_args(McpProblem),
}
SPENT = "The run reached its limit of 5 iterations."


def test_every_code_of_a_service_has_a_german_text() -> None:
    """R38: a code that is added without a text fails here."""
    found = catalogues()
    codes = {**CODES, "connection.closed": tuple(map(str, found["closed"]))}
    keys = [f"{family}.{code}" for family, listed in codes.items() for code in listed]
    assert [key for key in keys if not found["de"].get(key) or not found["en"].get(key)] == []
    assert [key for key in keys if found["de"][key] == found["en"][key]] == []
    known = {key for key in found["de"] if key.rpartition(".")[0] in codes}
    assert known - set(keys) == {"reason.detail"}


async def in_german(page: Page) -> None:
    await open_view(page, "Settings")
    await page.get_by_label("Language").select_option("de")
    await expect(page.get_by_role("heading", name="Einstellungen")).to_be_visible()


async def test_a_german_page_states_reasons_in_german_and_adds_the_text_of_the_service(stage: Stage) -> None:
    """R38: the reasons of a run, a call, a refused request and a server."""
    stage.resources |= scenes.RESOURCES | mcp_scenes.RESOURCES
    scenes.start(stage)
    content = {"success": False, "error": "the policy denies bash", "error_kind": "denied"}
    denied = {"content": content, "is_error": True, "error_kind": "denied"}
    scenes.call(stage, "k1", "bash", {"command": "rm -rf build"}, **denied)
    scenes.finish(stage, "max_iterations", error={"code": "max_iterations", "message": SPENT})
    conflict = {"code": "conflict", "message": "server 'wiki' is busy"}
    stage.failures["POST context/mcp-servers/wiki/look"] = (409, conflict)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.locator(".outcome")).to_contain_text(f"Iteration limit reached. {SPENT}")

        await in_german(page)
        await page.goto(f"{stage.url}/#/c/c1")
        spent = "Der Agent hat die Grenze der Iterationen erreicht"
        outcome = page.locator(".outcome")
        await expect(outcome.locator("span")).to_have_text(f"{spent}.")
        await expect(outcome.get_by_text(SPENT)).to_be_hidden()
        await outcome.get_by_text("Meldung des Servers").click()
        await expect(outcome.get_by_text(SPENT)).to_be_visible()
        await expect(outcome.get_by_text(SPENT)).to_have_attribute("lang", "en")
        await page.get_by_role("button", name="Details").click()
        await page.locator(".tool-head").click()
        await expect(page.locator(".tool-facts")).to_contain_text("Eine Regel verbietet den Aufruf")
        await expect(page.get_by_text("the policy denies bash")).to_be_visible()

        await page.goto(f"{stage.url}/#/mcp/wiki")
        listed = "Die Werkzeuge des Servers ließen sich nicht lesen"
        await expect(page.get_by_text(f"{listed} (the server responded with status 401)")).to_be_visible()
        await page.get_by_role("button", name="Werkzeuge neu lesen").click()
        await expect(page.locator(".form-error")).to_contain_text("nicht zu (server 'wiki' is busy)")
