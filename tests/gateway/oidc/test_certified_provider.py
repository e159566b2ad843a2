"""Sign-in through a certified OpenID Connect provider: form, roles, renewal, keys, clock and sign-out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.e2e.navigating import open_view
from tests.gateway.conftest import GatewayFactory, Served
from tests.gateway.oidc.certified_provider import CLIENT, CertifiedProvider, certified_provider
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

ACCOUNTS: dict[str, Any] = {
    "ann": {"tenant": "acme", "roles": ["leads", "another system's role"]},
    "bob": {"tenant": "acme", "roles": ["staff"]},
    "eve": {"tenant": "acme", "roles": ["visitors"]},
    "mallory": {"roles": ["leads"]},
    "zoe": {"tenant": "acme", "roles": ["staff"]},
}
ROLES = {"leads": ("chat", "approve", "admin"), "staff": ("chat",)}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Generator[CertifiedProvider]:
    with certified_provider(ACCOUNTS, tmp_path_factory.mktemp("provider")) as running:
        yield running


@pytest.fixture
def provider(started: CertifiedProvider) -> CertifiedProvider:
    started.execute("clock 0")
    started.execute("lifetime 600")
    return started


def settings(provider: CertifiedProvider, **more: Any) -> dict[str, Any]:
    return {
        "issuer": provider.issuer,
        "audience": "banksman",
        "rights_claim": "roles",
        "rights": ROLES,
        "key_pause_s": 0,
        **CLIENT,
        **more,
    }


@pytest.fixture
async def signed(start_gateway: GatewayFactory, provider: CertifiedProvider) -> AsyncGenerator[Served]:
    """A gateway that accepts the provider's accounts."""
    async with start_gateway(oidc=settings(provider)) as served:
        yield served


@pytest.fixture
async def page(signed: Served, provider: CertifiedProvider) -> AsyncGenerator[Page]:
    async with opened(signed.url, also=provider.issuer) as opened_page:
        yield opened_page


async def sign_in(page: Page, account: str) -> None:
    """Sign in as an account, whose name the provider's form takes."""
    await page.get_by_role("button", name="Sign in with your account").click()
    await page.get_by_label("Account").fill(account)
    await page.get_by_role("button", name="Continue").click()


async def sign_out(page: Page) -> None:
    """Sign out on the page and at the provider, which asks for it; return to the page."""
    gateway = page.url
    await page.get_by_role("button", name="Account: ").click()
    await page.get_by_role("menuitem", name="Sign out").click()
    await page.get_by_role("button", name="Sign out here too").click()
    await expect(page.get_by_text("The session has ended.")).to_be_visible()
    await page.goto(gateway)


async def is_signed_in(page: Page, account: str) -> None:
    await expect(page.get_by_text(f"{account} · acme")).to_be_visible()


async def test_an_invited_account_has_the_rights_of_its_role(page: Page) -> None:
    """R34: the roles that `People` names for a colleague suffice for the colleague's account.

    After the sign-out the provider shows its form: otherwise the next person at this browser would be Ann.
    """
    await sign_in(page, "ann")
    await is_signed_in(page, "ann")
    await open_view(page, "People")
    await page.get_by_role("button", name="Invite").click()
    await page.get_by_label("Signs in with").select_option(index=1)
    await page.get_by_label("approve").uncheck()
    invitation = page.get_by_role("dialog")
    await expect(invitation.get_by_text("staff", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Done").click()
    await sign_out(page)
    await sign_in(page, "bob")
    await is_signed_in(page, "bob")
    await page.get_by_role("button", name="Account: ").click()
    await expect(page.get_by_role("menuitem", name="Settings")).to_be_visible()
    await expect(page.get_by_role("menuitem", name="Manage")).to_have_count(0)


async def test_an_account_without_a_role_or_tenant_is_refused_and_another_one_may_sign_in(page: Page) -> None:
    """The provider's session of the refused account does not sign the user in again."""
    await sign_in(page, "eve")
    refusal = page.get_by_role("alert")
    await expect(refusal).to_have_text(
        "the account eve may neither chat nor approve here: an administrator can give it a role"
    )
    await sign_in(page, "mallory")
    await expect(refusal).to_contain_text("the account mallory belongs to no tenant: its claim 'tenant'")
    await sign_in(page, "bob")
    await is_signed_in(page, "bob")


async def test_an_expired_sign_in_is_renewed_without_losing_the_draft(
    page: Page, provider: CertifiedProvider
) -> None:
    """The token expired 27 s ago when it is issued, and clocks may differ by 30 s."""
    provider.execute("clock -35")
    provider.execute("lifetime 8")
    await sign_in(page, "ann")
    await page.get_by_role("textbox", name="Message").fill("Summarise the")
    await expect(page.get_by_text("Your sign-in has expired. Sign in again.")).to_be_visible()
    provider.execute("lifetime 600")
    # The provider's session is still valid, so that it shows no form.
    await page.get_by_role("button", name="Sign in with your account").click()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("Summarise the")


async def test_a_sign_in_survives_new_keys_and_a_clock_that_differs_a_little(
    page: Page, provider: CertifiedProvider
) -> None:
    provider.execute("rotate")
    await sign_in(page, "ann")
    await is_signed_in(page, "ann")
    await sign_out(page)
    provider.execute("clock 20")
    await sign_in(page, "bob")
    await is_signed_in(page, "bob")
    await sign_out(page)
    provider.execute("clock 300")
    await sign_in(page, "ann")
    await expect(page.get_by_role("alert")).to_contain_text("The token is not yet valid")


LASTING: dict[str, Any] = {
    "scopes": ("openid", "offline_access"),
    "authorization_parameters": {"prompt": "consent"},
}
"""OpenID Connect Core, section 11: the provider gives refresh tokens for this scope, after a consent."""


@pytest.mark.timeout(180)
async def test_two_tabs_are_renewed_with_rotating_tokens_and_keys_until_the_account_is_disabled(
    start_gateway: GatewayFactory, provider: CertifiedProvider
) -> None:
    """R35: each refresh token is used once by one tab, also after a sign-out, when the page adds `login`."""

    def renewed_after(count: int) -> bool:
        return provider.count("renewals") >= count

    async with (
        start_gateway(oidc=settings(provider, **LASTING)) as served,
        opened(served.url, also=provider.issuer) as page,
    ):
        provider.execute("lifetime 6")
        await sign_in(page, "zoe")
        await is_signed_in(page, "zoe")
        await sign_out(page)
        await sign_in(page, "zoe")
        await is_signed_in(page, "zoe")
        other = await page.context.new_page()
        await other.goto(served.url)
        await is_signed_in(other, "zoe")
        before = provider.count("renewals")
        await eventually(lambda: renewed_after(before + 3))
        provider.execute("rotate")
        await eventually(lambda: renewed_after(before + 6))
        assert provider.count("reuses") == 0
        for tab in (page, other):
            await is_signed_in(tab, "zoe")
        provider.execute("disable zoe")
        for tab in (page, other):
            await expect(tab.get_by_role("button", name="Sign in with your account")).to_be_visible()


async def test_the_command_line_takes_a_token_of_the_provider_and_names_its_variable_without_one(
    page: Page, signed: Served
) -> None:
    def banksman(token: str, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "banksman.cli", *command, "--url", signed.url],
            env={**os.environ, "BANKSMAN_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=WAIT_TIMEOUT_S,
        )

    await sign_in(page, "ann")
    await is_signed_in(page, "ann")
    token = await page.evaluate("localStorage.getItem('banksman.token')")
    accepted = await asyncio.to_thread(banksman, token, "approvals")
    refused = [await asyncio.to_thread(banksman, "", *one) for one in (("approvals",), ("run", "hello"))]
    assert (accepted.returncode, accepted.stdout) == (0, "no open approval requests\n"), accepted.stderr
    needed = "banksman: an API key is needed; set BANKSMAN_TOKEN to your key\n"
    assert [(one.returncode, one.stderr) for one in refused] == [(2, needed)] * 2
