"""What providers do differently from each other, and what a gateway accepts or refuses of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from tests.gateway.conftest import GatewayFactory
from tests.gateway.oidc.test_oidc import LISTING, authorized, bearer, settings
from tests.gateway.oidc.test_renewal import CHALLENGE, VERIFIER
from tests.support.oidc import AUDIENCE, CLIENT_ID, Provider, SigningKey, running_provider

GROUPS = {"rights_claim": "groups", "rights": {"leads": ("chat",)}, "default_rights": ("chat",)}
DOMAINS = {"tenant_claim": "hd", "tenants": {"example.com": "acme"}, "default_rights": ("chat",)}


@dataclass(frozen=True)
class Variant:
    """A token of some provider: its claims, how it is signed, and the settings for it."""

    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    key: Callable[[], SigningKey] = SigningKey
    kind: str = "JWT"
    refusal: str = ""
    """A part of the error message; empty if the token opens the gateway."""
    status: int = 200


def accepted(**claims: Any) -> Variant:
    return Variant(claims)


def refused(status: int, refusal: str, claims: dict[str, Any], settings: dict[str, Any]) -> Variant:
    return Variant(claims, settings, status=status, refusal=refusal)


def unnamed(private: Any, algorithm: str) -> Variant:
    return Variant(key=lambda: SigningKey(private=private, algorithm=algorithm, is_named=False))


def typed(kind: str, status: int = 200, refusal: str = "") -> Variant:
    return Variant(kind=kind, status=status, refusal=refusal)


RSA = rsa.generate_private_key(65537, 2048)
ELSEWHERE = {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph"}}}

VARIANTS: dict[str, Variant] = {
    "several audiences": accepted(aud=["account", AUDIENCE]),
    "the token of another client for this gateway": accepted(azp="command line"),
    "rights in one text": accepted(rights="profile chat"),
    "a claim named by a URL": Variant(
        {"https://acme.example/roles": ["leads"]},
        {"rights_claim": "https://acme.example/roles", "rights": {"leads": ("chat",)}},
    ),
    "keys without an algorithm, signed with RS256": unnamed(RSA, "RS256"),
    "keys without an algorithm, signed with PS512": unnamed(RSA, "PS512"),
    "keys without an algorithm, signed with ES384": unnamed(ec.generate_private_key(ec.SECP384R1()), "ES384"),
    "keys without an algorithm, signed with EdDSA": unnamed(ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    "an access token of RFC 9068": typed("at+jwt"),
    "its media type": typed("application/at+jwt"),
    "an address without a word about its verification": Variant(
        {"email": "ann@example.com"}, {"user_claim": "email"}
    ),
    "the domain of an organisation": Variant({"hd": "example.com", "tenant": None}, DOMAINS),
    "another domain": refused(403, "belongs to no tenant", {"hd": "elsewhere.example"}, DOMAINS),
    "a private account, which has no domain": refused(403, "belongs to no tenant", {"hd": None}, DOMAINS),
    "a tenant that is the name of no claim's value": refused(403, "no tenant", {"hd": "acme"}, DOMAINS),
    "an address that is not verified": refused(
        403, "not verified", {"email": "eve@example.com", "email_verified": False}, {"user_claim": "email"}
    ),
    "the same as a text": refused(
        403, "not verified", {"email": "eve@example.com", "email_verified": "false"}, {"user_claim": "email"}
    ),
    "too many groups for the token": refused(403, "'groups'", {**ELSEWHERE, "groups": None}, GROUPS),
    "the issuer of older access tokens": refused(401, "issuer", {"iss": "https://sts.windows.net/1/"}, {}),
    "a token that is bound to a key of its client": refused(401, "'cnf'", {"cnf": {"jkt": "x"}}, {}),
    "a logout token": typed("logout+jwt", 401, "logout+jwt"),
    "a response of an introspection": typed("token-introspection+jwt", 401, "token-introspection+jwt"),
}


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with running_provider() as running:
        yield running


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
async def test_tokens_of_providers_open_the_gateway_or_are_refused_with_the_reason(
    start_gateway: GatewayFactory, provider: Provider, variant: Variant
) -> None:
    provider.key = variant.key()
    options = settings(provider, **variant.settings)
    async with start_gateway(oidc=options) as served, served.http as http:
        token = provider.token(kind=variant.kind, **variant.claims)
        response = await http.get(LISTING, headers=bearer(token))
    assert (response.status_code, variant.refusal in response.text) == (variant.status, True), response.text


@pytest.mark.parametrize("opaque", ["ya29.a0AfH6SMB", "eyJhbGciOiJSU0EtT0FFUCJ9.key.iv.text.tag"])
async def test_a_token_that_only_the_provider_can_read_is_refused(
    start_gateway: GatewayFactory, provider: Provider, opaque: str
) -> None:
    """An access token of Google; an encrypted one (RFC 7516)."""
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        response = await http.get(LISTING, headers=bearer(opaque))
    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/", "/organizations", "/{tenantid}/v2.0"])
async def test_a_document_of_another_issuer_is_not_used(
    start_gateway: GatewayFactory, provider: Provider, path: str
) -> None:
    """Also if it differs by a final slash, or is a pattern for many issuers as at Entra ID."""
    provider.endpoints = {"issuer": f"{provider.issuer}{path}"}
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        response = await http.get(LISTING, headers=bearer(provider.token()))
    assert (response.status_code, provider.key_reads) == (503, 0)


async def test_a_redirect_to_a_document_is_not_followed(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    provider.moved = True
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        response = await http.get(LISTING, headers=bearer(provider.token()))
    assert (response.status_code, provider.key_reads) == (503, 0)


@pytest.mark.parametrize(("posts", "method", "status"), [
    (False, None, 200), (True, None, 401), (True, "post", 200), (False, "post", 401), (False, "basic", 200),
])  # fmt: skip
async def test_the_secret_is_sent_in_one_way(
    start_gateway: GatewayFactory, provider: Provider, posts: bool, method: str | None, status: int
) -> None:
    """Many providers name both ways and hold a client to its own; Okta refuses one that is named twice."""
    provider.posts = posts
    both = ["client_secret_post", "client_secret_basic"]
    provider.endpoints = {"token_endpoint_auth_methods_supported": both}
    async with start_gateway(oidc=settings(provider, client_auth=method)) as served, served.http as http:
        _, code = await authorized(http, served, challenge=CHALLENGE)
        body = {"code": code, "code_verifier": VERIFIER, "redirect_uri": f"{served.url}/"}
        reply = await http.post("/v1/sign-in", json=body)
    assert reply.status_code == status


@pytest.mark.parametrize(("nonce", "status"), [(CHALLENGE, 200), (None, 200), ("of another", 401)])
async def test_the_token_of_another_sign_in_is_refused(
    start_gateway: GatewayFactory, provider: Provider, nonce: str | None, status: int
) -> None:
    """At a provider that does not know PKCE, the nonce is what a code of an attacker lacks."""
    provider.claims["nonce"] = nonce
    async with start_gateway(oidc=settings(provider)) as served, served.http as http:
        _, code = await authorized(http, served, challenge=CHALLENGE)
        body = {"code": code, "code_verifier": VERIFIER, "redirect_uri": f"{served.url}/"}
        reply = await http.post("/v1/sign-in", json=body)
    assert reply.status_code == status


async def test_an_administrator_reads_the_name_that_the_claim_must_have_for_a_tenant(
    start_gateway: GatewayFactory, provider: Provider
) -> None:
    options = settings(provider, **DOMAINS)
    async with start_gateway(oidc=options) as served, served.http as http:
        token = provider.token(hd="example.com", rights=["admin"], aud=CLIENT_ID)
        listed = await http.get("/context/identity-providers", headers=bearer(token))
    [found] = listed.json()["items"]
    assert (found["tenant_claim"], found["tenant"]) == ("hd", "example.com")
