"""Sign-in, settings, the command palette, and the keys of other people."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import expect

from tests.e2e import scenes
from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

GROUND = "() => getComputedStyle(document.body).backgroundColor"


async def test_a_user_signs_in_through_a_provider_and_returns_to_the_same_place(stage: Stage) -> None:
    """The code is exchanged with the verifier whose digest the provider got, and leaves the address."""
    stage.token = "issued"
    stage.resources["v1/sign-in"] = {
        "authorization_endpoint": f"{stage.url}/authorize",
        "client_id": "page",
        "scope": "openid",
    }
    stage.resources["POST v1/sign-in"] = {"token": "issued"}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/settings")
        await page.get_by_role("button", name="Sign in with your account").click()
        await page.wait_for_url("**/authorize?*")
        asked = parse_qs(urlsplit(page.url).query)
        await page.goto(f"{stage.url}/?code=abc&state={asked['state'][0]}")
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        assert page.url == f"{stage.url}/#/settings"
    exchanged = json.loads(stage.uploads["v1/sign-in"])
    digest = hashlib.sha256(exchanged["code_verifier"].encode()).digest()
    assert asked["code_challenge"] == [base64.urlsafe_b64encode(digest).decode().rstrip("=")]
    assert (exchanged["code"], exchanged["redirect_uri"]) == ("abc", asked["redirect_uri"][0])


async def test_the_theme_and_the_language_are_chosen_and_stay_after_a_reload(stage: Stage) -> None:
    """R38: even if the system has another theme."""
    async with opened(stage.url) as page:
        light = await page.evaluate(GROUND)
        await open_view(page, "Settings")
        await page.get_by_label("Theme").select_option("dark")
        dark = await page.evaluate(GROUND)
        await page.get_by_label("Language").select_option("de")
        await expect(page.get_by_role("heading", name="Einstellungen")).to_be_visible()
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        assert await page.evaluate(GROUND) == dark
        await page.emulate_media(color_scheme="dark")
        await page.get_by_label("Farbschema").select_option("light")
        assert await page.evaluate(GROUND) == light
    assert dark != light


async def test_an_operator_replays_a_message_that_could_not_be_handled(stage: Stage) -> None:
    """R34: with its reason; a user without the right has no link to it."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await open_view(page, "Operations")
        await expect(page.get_by_text("the settings cannot be read").first).to_be_visible()
        await expect(page.get_by_text("no sandbox")).to_be_visible()
        stage.resources["operator/dead-letters"] = {"items": [], "next": None}
        await page.get_by_role("button", name="Send again: message 7").click()
        await expect(page.get_by_text("None. Every message was handled.")).to_be_visible()
        stage.rights = ("chat",)
        await page.reload()
        await expect(page.get_by_role("link", name="Approvals")).to_be_visible()
        await page.get_by_role("button", name="Account: ada").click()
        await expect(page.get_by_role("menuitem", name="Settings")).to_be_visible()
        await expect(page.get_by_role("menuitem", name="Manage")).to_have_count(0)
    assert "operator/dead-letters/7/replay" in stage.uploads


async def test_an_operator_sees_which_processes_are_ready_and_why_others_are_not(stage: Stage) -> None:
    """R34: processes, NATS servers, and the capacity of runners."""
    stage.resources |= scenes.RESOURCES
    async with opened(stage.url) as page:
        await open_view(page, "Operations")
        services = page.get_by_role("region", name="Services").locator("tbody tr")
        await expect(services).to_have_count(4)
        await expect(services.nth(0)).to_contain_text("3 of 32")
        await expect(services.nth(0)).to_contain_text("Ready")
        await expect(services.nth(1)).to_contain_text("stream RUNS is missing")
        await expect(services.nth(3).locator(".failed")).to_contain_text("No report since")
        servers = page.get_by_role("region", name="NATS 2.11.0").locator("tbody tr")
        await expect(servers.nth(1)).to_contain_text("Not reachable")
        await expect(page.get_by_text("Storage: 8.6 MiB of 86 MiB")).to_be_visible()
        await expect(page.get_by_role("region", name="Runners").locator("tbody tr").first).to_contain_text(
            "2 of 8"
        )


async def test_an_operator_sees_what_each_tenant_consumes_of_its_limits(stage: Stage) -> None:
    """R31, R34: page by page, with the limits that are nearly used up."""
    stage.resources |= scenes.RESOURCES
    stage.resources["operator/tenants"] = {**scenes.RESOURCES["operator/tenants"], "next": "local"}
    async with opened(stage.url) as page:
        await open_view(page, "Operations")
        rows = page.get_by_role("region", name="Tenants").locator("tbody tr")
        await expect(rows).to_have_count(2)
        for text in ("acme", "4,500 of 5,000", "$0.75 of $5.00", "47 KiB", "running_runs 3"):
            await expect(rows.first).to_contain_text(text)
        await expect(rows.first.locator(".failed")).to_have_text("4,500 of 5,000")
        await expect(rows.first).not_to_contain_text("cost_usd_per_month")
        stage.resources["operator/tenants"] = {"items": [scenes.tenant("zeta")], "next": None}
        await page.get_by_role("button", name="Show more tenants").click()
        await expect(rows).to_have_text([re.compile("^acme"), re.compile("^local"), re.compile("^zeta")])
        await expect(page.get_by_role("button", name="Show more tenants")).to_have_count(0)
        await page.get_by_role("button", name="Refresh").click()
        await expect(rows).to_have_text([re.compile("^zeta")])


async def test_a_colleague_is_invited_by_a_link_that_is_shown_once(stage: Stage) -> None:
    """R34: with rights and an expiry. A user without a key gets one first."""
    stage.resources |= scenes.RESOURCES
    stage.resources["POST context/keys"] = {**scenes.KEY, "user": "ada", "key": "bk-own"}
    async with opened(stage.url) as page:
        await open_view(page, "People")
        await page.get_by_role("button", name="Invite a person").click()
        await page.get_by_label("Your name or e-mail address").fill("ada")
        await page.get_by_role("button", name="Create my key").click()
        await expect(page.get_by_text("bk-own")).to_be_visible()
        own = json.loads(stage.uploads["context/keys"])
        stage.resources["POST context/keys"] = {**scenes.KEY, "user": "linus", "key": "bi-secret"}
        await page.get_by_role("button", name="I have stored it").click()
        await page.get_by_label("Name or e-mail address", exact=True).fill("linus")
        await page.get_by_label("approve commands and file changes").uncheck()
        await page.get_by_role("button", name="Create the link").click()
        await expect(page.get_by_text("#/invitation/bi-secret")).to_be_visible()
        await page.get_by_role("button", name="Done").click()
        await expect(page.get_by_text("bi-secret")).to_have_count(0)
        await page.get_by_role("button", name="Account: ada").click()
        await expect(page.get_by_role("menuitem", name="Sign out")).to_be_visible()
    assert (own["user"], set(own["rights"])) == ("ada", {"chat", "approve", "admin", "operator"})
    body = json.loads(stage.uploads["context/keys"])
    assert (body["user"], body["rights"]) == ("linus", ["chat"])
    assert {"expires_at", "claim_by"} <= body.keys()
    assert [frame.get("token") for frame in stage.received if frame["type"] == "hello"] == [None, "bk-own"]


async def test_a_colleague_is_invited_with_an_account_of_the_identity_provider(stage: Stage) -> None:
    """By the roles that give exactly the chosen rights, and one sentence to send."""
    stage.token = "bk-ada"
    stage.resources["context/identity-providers"] = {"items": [scenes.PROVIDER]}
    async with opened(stage.url) as page:
        await page.get_by_label("Key").fill("bk-ada")
        await page.get_by_role("button", name="Sign in").click()
        await open_view(page, "People")
        await page.get_by_role("button", name="Invite a person").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("signs in with").select_option("an account at id.example.org/acme")
        lines = dialog.locator(".field")
        await expect(lines.nth(0)).to_contain_text(re.compile("claim realm.roles.*leads", re.DOTALL))
        await expect(lines.nth(1)).to_contain_text(re.compile("claim org.*acme", re.DOTALL))
        await dialog.get_by_label("manage people").check()
        await expect(lines.locator("pre")).to_have_text(["leads", "admins", "acme", f"{stage.url}/"])
        await page.evaluate("() => navigator.clipboard.writeText = async (text) => { window.copied = text }")
        await dialog.get_by_role("button", name="Copy all as a message").click()
        await page.wait_for_function("() => window.copied")
        message = await page.evaluate("() => window.copied")
        await dialog.get_by_label("work with agents").uncheck()
        await expect(dialog).to_contain_text("No role at id.example.org/acme gives exactly these rights")
        await dialog.get_by_role("button", name="Done").click()
        await expect(dialog).to_have_count(0)
    assert message == (
        f"Open {stage.url}/ and sign in with your account at id.example.org/acme, to which an administrator "
        "there first gives the role leads (claim realm.roles), the role admins (claim realm.roles), "
        "and the tenant acme (claim org)."
    )
    assert "context/keys" not in stage.uploads


async def test_a_user_signs_in_with_a_key_where_none_is_needed(stage: Stage) -> None:
    """R34: so that decisions show the name of the key."""

    def tokens() -> list[str | None]:
        return [frame.get("token") for frame in stage.received if frame["type"] == "hello"]

    async with opened(stage.url) as page:
        await page.get_by_role("button", name="Account: ada").click()
        await page.get_by_role("menuitem", name="Sign in with a key").click()
        await page.get_by_role("button", name="Continue without a key").click()
        await page.get_by_role("button", name="Account: ada").click()
        await page.get_by_role("menuitem", name="Sign in with a key").click()
        await page.get_by_label("Key").fill("bk-linus")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("button", name="Account: ada").click()
        await expect(page.get_by_role("menuitem", name="Sign out")).to_be_visible()
    assert tokens() == [None, None, "bk-linus"]


async def test_an_invited_person_opens_the_link_and_stays_signed_in(stage: Stage) -> None:
    """R34: the address keeps no secret; a reload and a second tab need no key, and sign out together."""
    stage.token = "bk-of-linus"
    stage.resources["POST v1/invitations"] = {**scenes.KEY, "user": "linus", "key": "bk-of-linus"}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/invitation/bi-secret")
        message = page.get_by_role("textbox", name="Message")
        await expect(message).to_be_visible()
        assert "secret" not in page.url
        await page.reload()
        await expect(message).to_be_visible()
        second = await page.context.new_page()
        await second.goto(stage.url)
        await expect(second.get_by_role("textbox", name="Message")).to_be_visible()
        await second.get_by_role("button", name="Account").click()
        await second.get_by_role("menuitem", name="Sign out").click()
        await expect(page.get_by_label("Key")).to_be_visible()
    assert json.loads(stage.uploads["v1/invitations"]) == {"text": "bi-secret"}


@pytest.mark.parametrize("given", ["after the link of a conversation", "with a view"])
async def test_an_invitation_leads_to_the_conversation_that_was_shared(stage: Stage, given: str) -> None:
    """R34: a person who gets both links sees the conversation, also if one link names it."""
    stage.token = "bk-of-linus"
    stage.resources["POST v1/invitations"] = {**scenes.KEY, "user": "linus", "key": "bk-of-linus"}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c-shared")
        await expect(page.get_by_label("Key")).to_be_visible()
        if given == "with a view":
            await page.goto(f"{stage.url}/")
        await page.goto(f"{stage.url}/#/invitation/bi-secret" + ("/c/c-shared" if "view" in given else ""))
        await expect(page.get_by_role("button", name="Account")).to_be_visible()
        assert page.url == f"{stage.url}/#/c/c-shared"


async def test_own_instructions_are_saved_and_the_month_is_shown(stage: Stage) -> None:
    """R34: what the user wants of every reply, and what all runs of the tenant have cost."""
    stage.resources |= scenes.RESOURCES
    stage.resources["context/instructions"] = {"user": "ada", "text": "In Latin."}
    month = {"window": "month", "cost_usd": 12.5, "requests": 40, "max_cost_usd": None}
    stage.resources["context/usage"] = {"windows": [month]}
    stage.resources["PUT context/instructions"] = {"user": "ada", "text": "In Greek."}
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/settings")
        field = page.get_by_label("Your instructions")
        await expect(field).to_have_value("In Latin.")
        await expect(page.get_by_text("All runs together")).to_be_visible()
        await field.fill("In Greek.")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Your instructions are saved.")).to_be_visible()
    assert json.loads(stage.uploads["context/instructions"]) == {"text": "In Greek."}
