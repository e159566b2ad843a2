"""A sign-in that lasts: the provider's refresh token, in a cookie, gets further tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, async_playwright, expect
from tests.gateway.conftest import GatewayFactory, Served
from tests.gateway.oidc.test_oidc import authorized, bearer, opens, settings
from tests.support.browser import CHROMIUM, FLAGS, WAIT_TIMEOUT_MS
from tests.support.oidc import Provider, running_provider
from tests.support.polling import eventually

from banksman.gateway.oidc.provider import TIMEOUT_S

COOKIE = "banksman_sign_in"
RENEW = "/v1/sign-in/renew"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with running_provider() as running:
        yield running


@pytest.fixture
async def signed(start_gateway: GatewayFactory, provider: Provider) -> AsyncGenerator[Served]:
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))
        yield served


async def signed_in(http: httpx.AsyncClient, served: Served) -> tuple[dict[str, Any], str]:
    """Sign in; return the reply and the cookie, which is empty without one."""
    _, code = await authorized(http, served, challenge=CHALLENGE)
    body = {"code": code, "code_verifier": VERIFIER, "redirect_uri": f"{served.url}/"}
    reply = await http.post("/v1/sign-in", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json(), cookie_of(reply)


def cookie_of(reply: httpx.Response) -> str:
    header = reply.headers.get("set-cookie", "")
    name, _, value = header.partition(";")[0].partition("=")
    assert name == COOKIE and {"HttpOnly", "Secure", "SameSite=strict", "Path=/v1/sign-in"} <= set(
        header.split("; ")
    )
    return value.strip('"')


async def renewed(http: httpx.AsyncClient, cookie: str) -> httpx.Response:
    # Given as a header: the client's store of cookies sends none with `Secure` over http.
    return await http.post(RENEW, headers={"cookie": f"{COOKIE}={cookie}"})


async def test_a_rotating_refresh_token_is_used_once_each_by_any_gateway(
    signed: Served, start_gateway: GatewayFactory, provider: Provider
) -> None:
    """R35: nothing is stored at a gateway. Who repeats a used one ends the sign-in."""
    provider.refreshing = "rotated"
    async with (
        signed.http as http,
        start_gateway(oidc=settings(provider)) as second,
        second.http as other,
    ):
        await eventually(lambda: opens(other, provider.token()))
        first, cookie = await signed_in(http, signed)
        one = await renewed(other, cookie)
        two = await renewed(http, cookie_of(one))
        opened = [await opens(http, reply.json()["token"]) for reply in (one, two)]
        repeated = await renewed(http, cookie)
        ended = await renewed(http, cookie_of(two))
    assert (first["renewable"], one.json()["renewable"], opened) == (True, True, [True, True])
    assert (provider.renewals, provider.reuses) == (2, 1)
    assert (repeated.status_code, ended.status_code) == (401, 401)


async def test_a_provider_that_keeps_its_refresh_token_needs_the_scope_for_it(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    """R35: without `offline_access` there is none, and users sign in again as before."""
    provider.refreshing, provider.needs_offline_access = "kept", True
    scopes = ("openid", "offline_access")
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))
        without, removed = await signed_in(http, served)
    more = {"scopes": scopes, "authorization_parameters": {"access_type": "offline"}}
    async with start_gateway(oidc=settings(provider, **more)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))
        where = (await http.get("/v1/sign-in")).json()
        provider.needs_offline_access = "offline_access" not in where["scope"]
        given, cookie = await signed_in(http, served)
        again = [(await renewed(http, cookie)).status_code for _ in range(2)]
    assert (without["renewable"], removed, given["renewable"], again) == (False, "", True, [200, 200])
    assert where["parameters"] == {"access_type": "offline"}


async def test_a_sign_in_ends_when_the_provider_says_so_and_lasts_while_it_is_away(
    signed: Served, provider: Provider
) -> None:
    """R35: the user was disabled; the tokens are of another account; a renewal returns no ID token."""
    provider.refreshing = "kept"
    async with signed.http as http:
        _, cookie = await signed_in(http, signed)
        provider.fails = True
        away = await renewed(http, cookie)
        provider.fails, provider.disabled = False, True
        disabled = await renewed(http, cookie)
        provider.disabled, provider.claims = False, {**provider.claims, "sub": "eve"}
        another = await renewed(http, cookie)
        provider.claims, provider.omits_token = {**provider.claims, "sub": "ann"}, True
        missing = await renewed(http, cookie)
        provider.omits_token = False
        lasts = await renewed(http, cookie)
    assert (away.status_code, "retry-after" in away.headers) == (503, True)
    assert [one.status_code for one in (disabled, another, missing, lasts)] == [401, 401, 401, 200]


async def test_a_cookie_that_no_gateway_made_asks_the_provider_nothing(
    signed: Served, provider: Provider
) -> None:
    """R35, A22: nor does a key or a token of the provider open anything in its place."""
    provider.refreshing = "kept"
    async with signed.http as http:
        reply, cookie = await signed_in(http, signed)
        broken = (
            "",
            "x",
            "é".encode().hex(),
            reply["token"],
            cookie[:-8],
            cookie[:40] + "AAAA" + cookie[44:],
        )
        refused = [(await renewed(http, one)).status_code for one in broken]
        refused.append((await http.post(RENEW, headers=bearer(reply["token"]))).status_code)
        ended = await http.delete("/v1/sign-in", headers={"cookie": f"{COOKIE}={cookie}"})
    assert (refused, provider.renewals) == ([401] * 7, 0)
    assert cookie_of(ended) == ""


@pytest.mark.parametrize("ends", ["at once", "never", "not offered"])
async def test_a_sign_out_revokes_the_refresh_token_and_waits_for_no_provider(
    start_gateway: GatewayFactory, provider: Provider, ends: str
) -> None:
    """R35: RFC 7009. The cookie is removed in any case; the page is sent to the end of the session."""
    provider.refreshing, provider.ends, provider.hangs = "kept", ends != "not offered", ends == "never"
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))
        _, cookie = await signed_in(http, served)
        async with asyncio.timeout(TIMEOUT_S + 3):
            ended = await http.delete("/v1/sign-in", headers={"cookie": f"{COOKIE}={cookie}"})
        again = await renewed(http, cookie)
    revoked = ends == "at once"
    address = f"{provider.issuer}/logout" if revoked else None
    assert (cookie_of(ended), ended.json()["end_session_endpoint"]) == ("", address)
    assert (provider.revocations, again.status_code) == ((1, 401) if revoked else (0, 200))


async def tab(stack: AsyncExitStack, provider: Provider, signed: Served) -> tuple[Page, Page, list[str]]:
    """Return two tabs of a person who has signed in, and the websockets that they opened."""
    playwright = await stack.enter_async_context(async_playwright())
    browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    stack.push_async_callback(browser.close)
    context = await browser.new_context()
    context.set_default_timeout(WAIT_TIMEOUT_MS)
    sockets: list[str] = []
    context.on("page", lambda page: page.on("websocket", lambda socket: sockets.append(socket.url)))
    first = await context.new_page()
    await first.goto(signed.url)
    await first.get_by_role("button", name="Sign in with your account").click()
    await expect(first.get_by_role("textbox", name="Message")).to_be_visible()
    second = await context.new_page()
    await second.goto(signed.url)
    await expect(second.get_by_role("textbox", name="Message")).to_be_visible()
    return first, second, sockets


@pytest.mark.timeout(120)
async def test_two_tabs_stay_signed_in_until_the_provider_ends_it(signed: Served, provider: Provider) -> None:
    """R35: tokens that expire within five seconds; one tab renews for both, with each refresh token once."""
    # Gateways accept a token for 30 s after its end.
    provider.refreshing, provider.lifetime_s = "rotated", -25
    async with AsyncExitStack() as stack:
        first, second, sockets = await tab(stack, provider, signed)
        await eventually(lambda: provider.renewals >= 2)
        opened_at_sign_in = len(sockets)
        tokens = {await first.evaluate("localStorage.getItem('banksman.token')")}

        async def outlived() -> bool:
            tokens.add(await first.evaluate("localStorage.getItem('banksman.token')"))
            return provider.renewals >= 8

        await eventually(outlived)
        for page in (first, second):
            await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        assert (len(sockets), provider.reuses, len(tokens) > 2) == (opened_at_sign_in, 0, True)
        assert COOKIE not in await first.evaluate("document.cookie")

        provider.disabled = True
        for page in (first, second):
            await expect(page.get_by_role("button", name="Sign in with your account")).to_be_visible()
        count = provider.renewals
        provider.disabled = False
        await first.reload()
        await expect(first.get_by_role("button", name="Sign in with your account")).to_be_visible()
        assert (provider.renewals, provider.reuses) == (count, 0)


@pytest.mark.timeout(120)
async def test_a_page_that_was_closed_for_the_night_is_signed_in_in_the_morning(
    signed: Served, provider: Provider
) -> None:
    """R35: its token has expired; after a sign-out no token is renewed."""
    provider.refreshing = "rotated"
    async with AsyncExitStack() as stack:
        first, second, _ = await tab(stack, provider, signed)
        expired = provider.token(exp=1)
        await second.close()
        await first.evaluate("token => localStorage.setItem('banksman.token', token)", expired)
        await first.reload()
        await eventually(lambda: provider.renewals == 1)
        await expect(first.get_by_role("textbox", name="Message")).to_be_visible()
        await first.get_by_role("button", name="Account: ann").click()
        await first.get_by_role("menuitem", name="Sign out").click()
        await expect(first.get_by_text("You are signed out.")).to_be_visible()
        names = [cookie.get("name") for cookie in await first.context.cookies()]
        await first.goto(signed.url)
        await expect(first.get_by_role("button", name="Sign in with your account")).to_be_visible()
    assert (names, provider.renewals, provider.revocations, provider.ended) == ([], 1, 1, ["ann"])
