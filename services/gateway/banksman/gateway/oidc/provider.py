"""The documents of an OpenID Connect provider, and the exchange of a code for a token."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote_plus, urlencode

import httpcore
from aiohttp import encode_basic_auth
from pydantic import Field
from pydantic_core import from_json

from banksman.contracts.errors import Unauthorized, Unavailable
from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.contracts.wire import Wire
from banksman.gateway.pinned_http import PinnedHttp, RequestErrors, body_of
from banksman.gateway.settings import OidcSettings, secure_url
from banksman.runtime.addresses import Address
from banksman.runtime.pinned_network import AddressPolicy

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""Seconds for one response of the provider."""
MAX_BYTES = 512 * 1024
"""Maximum bytes of a document of the provider."""
RETRY_AFTER_S = 5.0
FIELD_CHARS = 4096
BUSY = 429
"""Statuses from this one on are no answer about the user."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProviderEndpoints:
    authorization: Url
    token: Url
    keys: Url
    revocation: Url | None
    end_session: Url | None
    basic_auth: bool
    """Whether the token endpoint expects the client's secret by HTTP basic authentication, not as a field."""


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """What the provider grants to a user."""

    token: str
    """The token with which the page uses the gateway."""
    refresh_token: str | None = field(repr=False)
    """Gets further tokens; None if the provider gives none."""


class SignInCode(Wire):
    """The code that a user brought back from the provider."""

    code: str = Field(min_length=1, max_length=FIELD_CHARS)
    code_verifier: str = Field(min_length=1, max_length=FIELD_CHARS)
    redirect_uri: str = Field(min_length=1, max_length=FIELD_CHARS)

    @property
    def challenge(self) -> str:
        """What the page sent to the provider before, as `code_challenge` and as `nonce`."""
        hashed = hashlib.sha256(self.code_verifier.encode()).digest()
        return base64.urlsafe_b64encode(hashed).rstrip(b"=").decode()


class OidcProvider:
    """https://openid.net/specs/openid-connect-discovery-1_0.html and RFC 7636 (PKCE)."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._http = PinnedHttp()

    async def endpoints(self) -> ProviderEndpoints:
        """Return the endpoints; raise `Unavailable` if the provider's document names another issuer."""
        issuer = self._settings.issuer
        found = await self._get(parse_url(f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
        if found.get("issuer") != issuer:
            raise _unavailable(f"the issuer is {found.get('issuer')!r}, not {issuer!r}")
        methods = found.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        method = self._settings.client_auth or ("basic" if "client_secret_basic" in str(methods) else "post")
        try:
            return ProviderEndpoints(
                authorization=secure_url(str(found.get("authorization_endpoint"))),
                token=secure_url(str(found.get("token_endpoint"))),
                keys=secure_url(str(found.get("jwks_uri"))),
                revocation=_optional(found.get("revocation_endpoint")),
                end_session=_optional(found.get("end_session_endpoint")),
                basic_auth=method == "basic",
            )
        except UrlRefused as refused:
            raise _unavailable(f"an endpoint is missing or not secure: {refused}") from refused

    async def key_set(self, endpoints: ProviderEndpoints) -> Document:
        return await self._get(endpoints.keys)

    async def exchange(self, endpoints: ProviderEndpoints, code: SignInCode) -> TokenGrant:
        """Return what the provider grants for a code; raise `Unauthorized` if it refuses it."""
        form = {
            "grant_type": "authorization_code",
            "code": code.code,
            "code_verifier": code.code_verifier,
            "redirect_uri": code.redirect_uri,
        }
        return await self._granted(endpoints, form)

    async def renew(self, endpoints: ProviderEndpoints, refresh_token: str) -> TokenGrant:
        """Return what the provider grants for a refresh token; raises as `exchange`.

        Some providers accept a refresh token once, and then return another one; others return none, and the
        token remains valid.
        """
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        found = await self._granted(endpoints, form)
        return found if found.refresh_token else replace(found, refresh_token=refresh_token)

    async def revoke(self, endpoints: ProviderEndpoints, refresh_token: str) -> None:
        """End a sign-in at a provider that can (RFC 7009); raise `Unavailable` if it does not."""
        if endpoints.revocation is None:
            return
        form = {"token": refresh_token, "token_type_hint": "refresh_token"}
        status, _ = await self._post(endpoints, endpoints.revocation, form)
        if status != 200:
            raise _unavailable(f"{endpoints.revocation}: HTTP {status}")

    async def _granted(self, endpoints: ProviderEndpoints, grant: Mapping[str, str]) -> TokenGrant:
        status, body = await self._post(endpoints, endpoints.token, grant)
        if status >= BUSY:
            raise _unavailable(f"{endpoints.token}: HTTP {status}")
        if status != 200:
            logger.warning("the OIDC provider refused a grant", extra={"status": status, "body": body})
            raise Unauthorized("the sign-in was refused")
        token, refresh_token = body.get(self._settings.token), body.get("refresh_token")
        if not isinstance(token, str):
            raise Unauthorized(f"the sign-in returned no {self._settings.token}")
        return TokenGrant(token, refresh_token if isinstance(refresh_token, str) else None)

    async def _post(
        self, endpoints: ProviderEndpoints, url: Url, fields: Mapping[str, str]
    ) -> tuple[int, Document]:
        """Send a form as the page's client."""
        client, secret = self._settings.client_id or "", self._settings.client_secret
        form = dict(fields)
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if secret is not None and endpoints.basic_auth:
            # Encoded as in a form: RFC 6749, section 2.3.1. Okta refuses clients that are named twice.
            headers["authorization"] = encode_basic_auth(
                quote_plus(client), quote_plus(secret.get_secret_value())
            )
        else:
            form["client_id"] = client
            form |= {"client_secret": secret.get_secret_value()} if secret is not None else {}
        return await self._request("POST", url, headers, urlencode(form).encode())

    async def _get(self, url: Url) -> Document:
        status, body = await self._request("GET", url, {"accept": "application/json"})
        if status != 200:
            raise _unavailable(f"{url}: HTTP {status}")
        return body

    async def _request(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, Document]:
        allowed: AddressPolicy = (lambda _: True) if url.scheme == "https" else _is_loopback
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._http.request(method, url, headers, body, allowed=allowed) as response,
            ):
                return response.status, await _document(response)
        except RequestErrors as error:
            raise _unavailable(f"{url}: {str(error) or type(error).__name__}") from error


def _optional(found: Any) -> Url | None:
    return None if found is None else secure_url(str(found))


def _is_loopback(address: Address) -> bool:
    return address.is_loopback


async def _document(response: httpcore.Response) -> Document:
    body = await body_of(response, MAX_BYTES)
    if len(body) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    # A revocation has no content.
    found: object = from_json(body or b"{}")
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return cast(Document, found)


def _unavailable(reason: str) -> Unavailable:
    logger.warning("the OIDC provider cannot be used: %s", reason)
    return Unavailable("the OIDC provider cannot be used now", retry_after_s=RETRY_AFTER_S)
