"""A person without the right `admin` signs in at servers of tools, and finds where when a call needs it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e import mcp_scenes, scenes
from tests.e2e.stage import CONVERSATION, Stage
from tests.support.browser import Look, opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

LIST = "context/mcp-accounts"
SIGN_IN = f"{LIST}/issues/sign-in"
NEEDED = {"success": False, "error": "The call was not sent.", "error_kind": "unavailable", "sign_in": True}


def account(id: str = "issues", **more: Any) -> dict[str, Any]:
    return {"id": id, "description": "Issues of the team", "needs_sign_in": True, "signed_in": None, **more}


async def test_a_call_without_a_sign_in_leads_to_settings_where_a_person_signs_in(stage: Stage) -> None:
    """R34, R38"""
    stage.rights = ("chat",)
    signed_in = {"user": "ada", "at": "2026-01-05T07:00:00Z", "expires_at": None}
    stage.resources[LIST] = {"items": [account(), account("wiki", needs_sign_in=False, signed_in=signed_in)]}
    stage.resources[f"POST {SIGN_IN}"] = {"url": f"{stage.url}/#/settings/mcp/issues/failed"}
    scenes.start(stage, "Which issues are open?")
    refused = {"is_error": True, "error_kind": "unavailable", "content": NEEDED}
    scenes.call(stage, "k1", "issues__list", {}, **refused)
    scenes.reply(stage, "I could not read the issues.")
    scenes.finish(stage, content="I could not read the issues.")
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/{CONVERSATION}")
        await expect(
            page.get_by_text("issues needs a sign-in by the person this run works for")
        ).to_be_visible()
        await page.get_by_role("link", name="Open Settings").click()
        section = page.get_by_role("region", name="Your accounts at tool servers")
        await expect(section.get_by_role("alert")).to_have_count(0)
        issues, wiki = (section.get_by_role("group", name=name) for name in ("issues", "wiki"))
        await expect(issues).to_contain_text("Not signed in")
        await expect(wiki).to_contain_text("Signed in")
        await issues.get_by_role("button", name="Sign in").click()
        # The browser returns from the authorization server, where the person clicked on Cancel.
        await expect(section.get_by_role("alert")).to_contain_text(
            "The sign-in at issues was cancelled or refused"
        )
        assert json.loads(stage.uploads[SIGN_IN]) == {"gateway_url": f"{stage.url}/", "to_page": True}

        stage.resources[LIST] = {"items": [account(needs_sign_in=False, signed_in=signed_in)]}
        await page.goto(f"{stage.url}/#/settings/mcp/issues/ended")
        await expect(section.get_by_role("alert")).to_contain_text("took longer than ten minutes")
        await page.goto(f"{stage.url}/#/settings/mcp/issues")
        stage.resources[f"DELETE {SIGN_IN}"] = {}
        await page.reload()
        await expect(issues.get_by_role("button", name="Sign out")).to_be_visible()
        # The list after the sign-out.
        stage.resources[LIST] = {"items": [account()]}
        await issues.get_by_role("button", name="Sign out").click()
        await expect(issues).to_contain_text("Not signed in")


async def test_the_texts_are_german_and_a_server_says_whose_sign_in_it_uses(stage: Stage) -> None:
    """R38"""
    own = mcp_scenes.server("issues", sign_in="user", needs_sign_in=True)
    stage.resources |= {f"{method}context/mcp-servers/issues": own for method in ("", "PUT ")}
    stage.resources |= {LIST: {"items": [account()]}}
    async with opened(stage.url, look=Look(language="de")) as page:
        await page.goto(f"{stage.url}/#/settings/mcp/issues/failed")
        section = page.get_by_role("region", name="Ihre Konten bei Werkzeugservern")
        await expect(section.get_by_role("alert")).to_contain_text("wurde dort abgebrochen")
        await page.goto(f"{stage.url}/#/mcp/issues")
        await expect(
            page.get_by_text("Hier meldet sich jede Person mit ihrem eigenen Konto an")
        ).to_be_visible()
        await page.get_by_role("button", name="Ändern", exact=True).click()
        choice = page.get_by_role("combobox", name="Wer sich dort anmeldet")
        await expect(choice).to_have_value("user")
        await choice.select_option("tenant")
        await page.get_by_role("button", name="Speichern").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert "sign_in" not in json.loads(stage.uploads["context/mcp-servers/issues"])
