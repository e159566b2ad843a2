"""Bearer tokens of an OpenID Connect provider, and the sign-in of the page with it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import jwt
import pytest
from playwright.async_api import async_playwright, expect
from tests.gateway.conftest import GatewayFactory, Served, Socket
from tests.support.browser import CHROMIUM, FLAGS, WAIT_TIMEOUT_MS
from tests.support.oidc import AUDIENCE, CLIENT_ID, CLIENT_SECRET, Provider, SigningKey, running_provider
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from websockets.exceptions import ConnectionClosed

LISTING = "/context/conversations"


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with running_provider() as running:
        yield running


@pytest.fixture
async def signed(start_gateway: GatewayFactory, provider: Provider) -> AsyncGenerator[Served]:
    """A gateway that accepts the provider's tokens and has read its keys."""
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))
        yield served


def settings(provider: Provider, **more: Any) -> dict[str, Any]:
    page = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
    return {"issuer": provider.issuer, "audience": AUDIENCE, **page, **more}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def opens(http: httpx.AsyncClient, token: str) -> bool:
    return (await http.get(LISTING, headers=bearer(token))).status_code == 200


FAR = (1e300, float("inf"), float("nan"), 10**40, 253_402_300_800, -(10**40), "x", [1], {})
OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {"exp": (*FAR, -1, True), "nbf": FAR[:4], "iat": FAR[:4]}
"""Values of claims that are no time, or none that a gateway can compute with."""


KEY_LIST = '{"alg":"ES256","kid":["a"]}'


def base64url(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def broken_tokens(provider: Provider) -> dict[str, str]:
    header, payload, _ = provider.token().split(".")
    public = jwt.PyJWK(provider.key.public)
    return {
        "another issuer": provider.token(iss="https://elsewhere.example"),
        "another audience": provider.token(aud="another"),
        "expired": provider.token(exp=int(time.time()) - 3600),
        "not yet valid": provider.token(nbf=int(time.time()) + 3600),
        "without an expiry": provider.token(exp=None),
        **{
            f"{claim} is {value!r}": provider.token(**{claim: value})
            for claim, values in OUT_OF_RANGE.items()
            for value in values
        },
        "a header that is too deep": f"{base64url('[' * 9_000)}.{payload}.x",
        "a header that is no object": f"{base64url('[]')}.{payload}.x",
        "a key id that is no text": f"{base64url(KEY_LIST)}.{payload}.x",
        "without a user": provider.token(sub=None),
        "signed with another key": provider.token(key=SigningKey(id=provider.key.id)),
        "signed with an unknown key": provider.token(key=SigningKey()),
        "signed with the public key as a secret": hmac_token(provider, str(public.key)),
        "unsigned": jwt.encode({"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann"}, "", algorithm="none"),
        "without its signature": f"{header}.{payload}.",
        "no token at all": "a.b.c",
    }


def hmac_token(provider: Provider, secret: str) -> str:
    claims = {**provider.claims, "iss": provider.issuer, "aud": AUDIENCE, "exp": int(time.time()) + 600}
    return jwt.encode(claims, secret.ljust(64), algorithm="HS256", headers={"kid": provider.key.id})


async def test_a_token_grants_the_rights_of_its_claims_on_http_and_on_the_websocket(
    signed: Served, provider: Provider
) -> None:
    approver = provider.token(sub="eve", tenant="umbrella", rights=["approve"])
    async with signed.http as http, signed.raw() as connection:
        welcome = await Socket(connection).request("hello", token=approver)
        chats = await http.post(LISTING, json={}, headers=bearer(provider.token()))
        approves = await http.post(LISTING, json={}, headers=bearer(approver))
        tenantless = await http.get(LISTING, headers=bearer(provider.token(tenant=None)))
        rightless = await http.get(LISTING, headers=bearer(provider.token(rights=None)))
        without = await http.get(LISTING)
    assert (welcome["tenant"], welcome["user"]) == ("umbrella", "eve")
    statuses = [one.status_code for one in (chats, approves, tenantless, rightless, without)]
    assert statuses == [201, 403, 403, 403, 401]


async def test_a_token_that_the_provider_did_not_sign_for_this_gateway_is_refused(
    signed: Served, provider: Provider
) -> None:
    async with signed.http as http:
        found = {
            what: (await http.get(LISTING, headers=bearer(token))).status_code
            for what, token in broken_tokens(provider).items()
        }
    assert found == dict.fromkeys(found, 401)


async def test_a_new_key_of_the_provider_is_read_when_a_token_names_it(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    async with start_gateway(oidc=settings(provider, key_pause_s=0)) as served, served.http as http:
        old = provider.token()
        await eventually(lambda: opens(http, old))
        provider.key = SigningKey()
        by_http = await opens(http, provider.token())
        provider.key = SigningKey()
        async with served.raw() as connection:
            welcome = await Socket(connection).request("hello", token=provider.token())
        withdrawn = await opens(http, old)
    assert (by_http, welcome["type"], withdrawn) == (True, "welcome", False)


async def test_tokens_that_name_unknown_keys_do_not_flood_the_provider(
    signed: Served, provider: Provider
) -> None:
    before = provider.key_reads
    async with signed.http as http, asyncio.TaskGroup() as group:
        asked = [group.create_task(opens(http, provider.token(key=SigningKey()))) for _ in range(20)]
        await asyncio.wait(asked)
    assert (provider.key_reads, any(one.result() for one in asked)) == (before, False)


@pytest.mark.parametrize("name", ["jwks_uri", "token_endpoint", "authorization_endpoint"])
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1\\@evil.example/x", "http://\uff11\uff12\uff17.0.0.1/x", "http://evil.example/x"]
)
async def test_an_endpoint_of_the_provider_that_is_not_secure_or_read_differently_is_not_used(
    start_gateway: GatewayFactory, provider: Provider, name: str, url: str
) -> None:
    provider.endpoints = {name: url}
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        response = await http.get(LISTING, headers=bearer(provider.token()))
    assert (response.status_code, provider.key_reads) == (503, 0)


@pytest.mark.parametrize(
    "document",
    ['{"keys": 5}', '{"keys": {"a": 1}}', '{"keys": null}', "[" * 5_000, '{"keys":' + "[" * 5_000, "5", "\0"],
    ids=range(7),
)
async def test_a_document_of_the_provider_in_another_form_is_an_unavailable_provider(
    start_gateway: GatewayFactory, provider: Provider, document: str
) -> None:
    """The gateway stays ready, and its keys read what they name."""
    async with start_gateway(oidc=settings(provider, key_pause_s=0)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))
        provider.further_keys = document
        responses = [await http.get(LISTING, headers=bearer(provider.token(key=SigningKey()))) for _ in "123"]
        provider.further_keys = ()
        await eventually(lambda: opens(http, provider.token()))
    assert {response.status_code for response in responses} <= {401, 503}


async def test_keys_of_the_provider_that_cannot_be_used_leave_the_others(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    rsa = {"kty": "RSA", "n": "AQAB", "e": "AQAB"}
    provider.further_keys = [
        "x",
        None,
        {},
        {**rsa, "alg": "none"},
        {**rsa, "alg": ["RS256"]},
        {"kty": ["EC"]},
    ]
    provider.endpoints = {"token_endpoint_auth_methods_supported": None}
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        await eventually(lambda: opens(http, provider.token()))


async def test_tokens_wait_for_a_provider_that_does_not_respond_at_the_start(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    """The gateway serves keys meanwhile. A token that cannot be checked is not reported as wrong."""
    provider.fails = True
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        early = await http.get(LISTING, headers=bearer(provider.token()))
        async with served.raw() as connection:
            with pytest.raises(ConnectionClosed) as closed:
                await Socket(connection).request("hello", token=provider.token())
    assert (early.status_code, "retry-after" in early.headers) == (503, True)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011


async def test_claims_may_be_nested_and_their_values_translated(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    options = settings(
        provider,
        tenant_claim="org.id",
        rights_claim="realm_access.roles",
        rights={"banksman-admins": ("chat", "admin")},
    )
    roles = {"org": {"id": "acme"}, "realm_access": {"roles": ["banksman-admins", "operator"]}}
    async with start_gateway(oidc=options) as served, served.http as http:
        token = provider.token(tenant=None, rights=None, **roles)
        await eventually(lambda: opens(http, token))
        own = await http.get("/context/keys", headers=bearer(token))
        foreign = await http.get("/context/keys?tenant=umbrella", headers=bearer(token))
    assert (own.status_code, foreign.status_code) == (200, 403)


async def test_an_administrator_reads_which_roles_of_the_provider_grant_which_rights(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    """What a colleague's account needs, without a secret, and no role of operators for others."""
    options = settings(
        provider,
        rights_claim="roles",
        rights={"leads": ("chat", "admin"), "root": ("admin", "operator")},
        default_tenant="umbrella",
        default_rights=("chat",),
    )
    async with start_gateway(oidc=options) as served, served.http as http:
        lead = bearer(provider.token(roles=["leads"]))
        root = bearer(provider.token(roles=["root"], tenant=None))
        await eventually(lambda: opens(http, provider.token(roles=["leads"])))
        by_lead = await http.get("/context/identity-providers", headers=lead)
        by_root = (await http.get("/context/identity-providers", headers=root)).json()["items"]
    leads = {"value": "leads", "rights": ["chat", "admin"]}
    assert by_lead.json()["items"] == [
        {
            "issuer": provider.issuer,
            "on_page": True,
            "tenant": "acme",
            "tenant_claim": "tenant",
            "default_tenant": False,
            "rights_claim": "roles",
            "roles": [leads],
            "default_rights": ["chat"],
        }
    ]
    assert CLIENT_SECRET not in by_lead.text
    assert (by_root[0]["tenant"], by_root[0]["default_tenant"]) == ("umbrella", True)
    assert by_root[0]["roles"] == [leads, {"value": "root", "rights": ["admin", "operator"]}]


async def test_a_gateway_without_a_provider_returns_an_empty_list_of_providers(
    start_gateway: GatewayFactory,
) -> None:
    async with start_gateway() as served, served.http as http:
        listed = await http.get("/context/identity-providers")
    assert listed.json()["items"] == []


async def test_a_websocket_closes_when_its_token_expires(signed: Served, provider: Provider) -> None:
    """The provider's clock may be 30 s behind, so a token is accepted for as long."""
    expiring = provider.token(exp=int(time.time()) - 27)
    async with signed.raw() as connection:
        await Socket(connection).request("hello", token=expiring)
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await connection.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401


async def authorized(http: httpx.AsyncClient, signed: Served, challenge: str) -> tuple[dict[str, str], str]:
    """Go to the provider as the page does; return the response of `/v1/sign-in`, and the code."""
    where = (await http.get("/v1/sign-in")).json()
    asked = {
        "redirect_uri": f"{signed.url}/",
        "state": "s",
        "client_id": where["client_id"],
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    sent = await http.get(where["authorization_endpoint"], params=asked)
    assert sent.status_code == 302
    return where, httpx.URL(sent.headers["location"]).params["code"]


async def test_a_code_is_exchanged_only_with_its_verifier(signed: Served, provider: Provider) -> None:
    async with signed.http as http:
        where, code = await authorized(http, signed, challenge="of-another-verifier")
        body = {"code": code, "code_verifier": "guessed", "redirect_uri": f"{signed.url}/"}
        refused = await http.post("/v1/sign-in", json=body)
        damaged = await http.post("/v1/sign-in", json={"code": code})
    assert (refused.status_code, damaged.status_code) == (401, 400)
    assert CLIENT_SECRET not in str(where)


async def test_a_sign_in_is_in_the_audit_trail_and_a_refused_one_is_not(
    signed: Served, provider: Provider, tenant: str
) -> None:
    """R34: with the user and the tenant that the provider named, without the code and the token."""
    provider.claims |= {"tenant": tenant, "rights": ["chat", "admin"]}
    verifier = "v" * 43
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    async with signed.http as http:
        _, code = await authorized(http, signed, challenge=challenge)
        body = {"code": code, "code_verifier": verifier, "redirect_uri": f"{signed.url}/"}
        accepted = await http.post("/v1/sign-in", json=body)
        used = await http.post("/v1/sign-in", json=body)
        token = accepted.json()["token"]
        trail = (await http.get("/v1/audit", headers=bearer(token))).json()["items"]
    assert (accepted.status_code, used.status_code) == (200, 401)
    [entry] = trail
    assert (entry["action"], entry["actor"], entry["target"]) == ("user.signed_in", "ann", "ann")
    assert (entry["tenant"], entry["interface"], entry["details"]) == (tenant, "http", {})
    assert token not in str(trail) and code not in str(trail)


async def test_a_gateway_without_a_provider_offers_no_sign_in(gateway: Served) -> None:
    async with gateway.http as http:
        where = await http.get("/v1/sign-in")
        refused = await http.post("/v1/sign-in")
    # Not an error: a browser would log it for each person who opens the page.
    assert (where.status_code, any(where.json().values())) == (200, False)
    assert refused.status_code == 404


async def test_a_user_signs_in_on_the_page(signed: Served, provider: Provider) -> None:
    """The page goes to the provider and is back with a conversation list; the code leaves the address."""
    async with AsyncExitStack() as stack:
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        stack.push_async_callback(browser.close)
        page = await browser.new_page()
        page.set_default_timeout(WAIT_TIMEOUT_MS)
        await page.goto(signed.url)
        await page.get_by_role("button", name="Sign in with your account").click()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
        address = page.url
        stored = await page.evaluate("localStorage.getItem('banksman.token')")
        pending = await page.evaluate("sessionStorage.getItem('banksman.signin')")
    assert "code=" not in address and "state=" not in address
    assert jwt.decode(stored, options={"verify_signature": False})["aud"] == CLIENT_ID
    assert pending is None
