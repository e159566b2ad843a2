"""Sign-in through Glewlwyd, which has no code in common with the other providers of these tests."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, expect
from tests.e2e.navigating import open_view
from tests.gateway.conftest import GatewayFactory
from tests.gateway.oidc.glewlwyd import CLIENT, PASSWORD, Glewlwyd, running_glewlwyd
from tests.support.browser import opened

# The server's packages are fetched and unpacked once.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Generator[Glewlwyd]:
    with running_glewlwyd(tmp_path_factory.mktemp("glewlwyd")) as running:
        yield running


@pytest.fixture
async def page(start_gateway: GatewayFactory, provider: Glewlwyd) -> AsyncGenerator[Page]:
    oidc: dict[str, Any] = {
        "issuer": provider.issuer,
        "audience": "banksman",
        "rights_claim": "roles",
        "rights": {"leads": ("chat", "admin")},
        "scopes": ("openid",),
        "client_auth": "post",
        **CLIENT,
    }
    async with start_gateway(oidc=oidc) as served, opened(served.url, also=provider.url) as found:
        provider.register(f"{served.url}/")
        yield found


async def sign_in(page: Page, provider: Glewlwyd, name: str) -> None:
    """Sign in with the requests of its form, whose scripts load files of other hosts."""
    await page.route(re.compile(re.escape(provider.url) + r".*\.js$"), lambda route: route.abort())
    await page.get_by_role("button", name="Sign in with your account").click()
    await page.wait_for_url(f"{provider.url}/login.html?**")
    [continued] = parse_qs(urlsplit(page.url).query)["callback_url"]
    await page.request.post(f"{provider.url}/api/auth/", data={"username": name, "password": PASSWORD})
    await page.goto(f"{continued}&g_continue")


async def test_a_user_signs_in_at_a_provider_that_requires_a_nonce_and_out_again(
    page: Page, provider: Glewlwyd
) -> None:
    """It names users by its own ids, and does not decode a secret in a header (RFC 6749, 2.3.1)."""
    provider.add_user("ann", tenant="acme", roles=["leads"])
    await sign_in(page, provider, "ann")
    await open_view(page, "People")
    await expect(page.get_by_role("button", name="Invite")).to_be_visible()
    await page.get_by_role("button", name="Account: ").click()
    await page.get_by_role("menuitem", name="Sign out").click()
    await page.wait_for_url(re.compile(re.escape(provider.url) + ".*prompt=end_session"))


async def test_a_user_without_a_role_is_refused(page: Page, provider: Glewlwyd) -> None:
    provider.add_user("eve", tenant="acme")
    await sign_in(page, provider, "eve")
    await expect(page.get_by_role("alert")).to_contain_text("may neither chat nor approve here")
