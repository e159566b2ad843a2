"""OAuth sign-in at an MCP server (revision 2025-11-25): all requests except those of the user's browser.

The addresses come from the server and its authorization server, which are not trusted: all requests use
`Egress`, follow no redirect, and read at most `MAX_DOCUMENT_BYTES`.
"""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx2
from mcp.client.auth import OAuthRegistrationError, OAuthTokenError
from mcp.client.auth import utils as oauth
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, ValidationError

from banksman.contracts.mcp import AccessToken, Authorization, OAuthClient
from banksman.contracts.runner_requests import DiscoverSignIn, RequestToken
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.tool_runner.egress.client import ANY_HOST, Egress
from banksman.tool_runner.mcp.connection import ConnectionState, ReceiptMeter
from banksman.tool_runner.mcp.transports import CheckedTransport

SIGN_IN_S: Final = 10.0
"""Seconds for all requests of one step."""
MAX_DOCUMENT_BYTES: Final = 64 * 1024
_GRANTS = ["authorization_code", "refresh_token"]
_OK, _UNAUTHORIZED = 200, 401
_REFUSED = frozenset({400, 401, 403})
"""Statuses of a token endpoint that refuses a grant (RFC 6749, section 5.2; 403 of some vendors)."""
_CODE = re.compile(rb'"error"\s*:\s*"([a-z_]{1,40})"')
_PROBE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": LATEST_PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "banksman", "version": "1"},
    },
}
_BOTH = "application/json, text/event-stream"


class SignInFailed(Exception):
    """A user cannot sign in. The text is for an administrator and contains no part of a response."""


class GrantRefused(SignInFailed):
    """The authorization server refused a code or a refresh token."""


@dataclass(frozen=True, slots=True)
class Authorizations:
    egress: Egress

    async def discover(self, wanted: DiscoverSignIn) -> Authorization:
        """Return where users sign in for a server; register this platform at the authorization server."""
        try:
            async with asyncio.timeout(SIGN_IN_S):
                return await self._discovered(wanted)
        except TimeoutError as error:
            raise SignInFailed(f"the authorization server was not found within {SIGN_IN_S:g} s") from error
        except ValidationError as error:
            raise SignInFailed("the authorization server returned invalid values") from error

    async def token(self, wanted: RequestToken) -> AccessToken:
        """Request a token; raise `GrantRefused` if the authorization server refuses the grant."""
        form, headers = _identified(wanted)
        request = httpx2.Request("POST", wanted.token_endpoint, data=form, headers=headers)
        try:
            async with asyncio.timeout(SIGN_IN_S):
                response = await self._send(request)
                if response.status_code in _REFUSED:
                    raise GrantRefused(f"the authorization server refused the grant: {_error_code(response)}")
                if response.status_code != _OK:
                    raise SignInFailed(f"the token endpoint responded with status {response.status_code}")
                token = await oauth.handle_token_response_scopes(response)
            return AccessToken(
                access_token=token.access_token,
                refresh_token=token.refresh_token,
                expires_in_s=token.expires_in,
            )
        except TimeoutError as error:
            raise SignInFailed(f"the token endpoint did not respond within {SIGN_IN_S:g} s") from error
        except (OAuthTokenError, ValidationError):
            # `from None`, because the text of the cause contains the token.
            raise SignInFailed("the token endpoint responded with an unusable token") from None

    async def _discovered(self, wanted: DiscoverSignIn) -> Authorization:
        probe = httpx2.Request("POST", wanted.url, json=_PROBE, headers={"accept": _BOTH})
        challenge = await self._send(probe, body=False)
        resource = await self._resource(challenge, wanted.url)
        issuer = str(resource.authorization_servers[0]) if resource else None
        server = await self._server(issuer, wanted.url)
        stated = (
            oauth.extract_scope_from_www_auth(challenge) if challenge.status_code == _UNAUTHORIZED else None
        )
        return Authorization(
            issuer=str(server.issuer),
            states_issuer=bool(server.authorization_response_iss_parameter_supported),
            authorization_endpoint=self._safe(str(server.authorization_endpoint)),
            token_endpoint=self._safe(str(server.token_endpoint)),
            resource=str(resource.resource) if resource else resource_url_from_server_url(wanted.url),
            scope=oauth.get_client_metadata_scopes(stated, resource, server, _GRANTS),
            client=await self._client(wanted, server),
        )

    async def _resource(self, challenge: httpx2.Response, url: str) -> ProtectedResourceMetadata | None:
        """Return the server's own metadata (RFC 9728); None if it has none, as before revision 2025-06-18."""
        stated = None
        if challenge.status_code == _UNAUTHORIZED:
            stated = oauth.extract_resource_metadata_from_www_auth(challenge)
        for address in oauth.build_protected_resource_metadata_discovery_urls(stated, url):
            response = await self._send(oauth.create_oauth_metadata_request(address))
            found = await oauth.handle_protected_resource_response(response)
            if found is None:
                continue
            ours = resource_url_from_server_url(url)
            if not check_resource_allowed(requested_resource=ours, configured_resource=str(found.resource)):
                # A token for another resource could be used there by this server.
                raise SignInFailed("the metadata of the server describes another resource")
            return found
        return None

    async def _server(self, issuer: str | None, url: str) -> OAuthMetadata:
        """Return the metadata of the authorization server (RFC 8414), which must support PKCE with S256."""
        for address in oauth.build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
            response = await self._send(oauth.create_oauth_metadata_request(address))
            _, found = await oauth.handle_auth_metadata_response(response)
            if found is None:
                continue
            origin = issuer or str(httpx2.URL(url).join("/"))
            if not oauth.issuers_match(str(found.issuer), origin):
                raise SignInFailed("the authorization server names another issuer")
            if "S256" not in (found.code_challenge_methods_supported or ()):
                raise SignInFailed("the authorization server does not support PKCE with S256")
            return found
        raise SignInFailed("the server names no authorization server, or the named one has no metadata")

    async def _client(self, wanted: DiscoverSignIn, server: OAuthMetadata) -> OAuthClient:
        """Return the given client if it belongs to this authorization server; otherwise register one."""
        issuer, given = str(server.issuer), wanted.client
        if given is not None and given.issuer in (None, issuer):
            if given.redirect_uri in (None, wanted.redirect_uri):
                return given
        if server.registration_endpoint is None:
            raise SignInFailed("the authorization server does not register clients: configure a client id")
        metadata = OAuthClientMetadata(
            client_name="Banksman",
            redirect_uris=[AnyUrl(wanted.redirect_uri)],
            grant_types=_GRANTS,
            application_type="web",
        )
        try:
            request = oauth.create_client_registration_request(server, metadata, issuer)
            registered = await oauth.handle_registration_response(await self._send(request))
            check_registration_usable(registered)
        except OAuthRegistrationError:
            # The text of the cause contains the response.
            raise SignInFailed("the authorization server did not register this client") from None
        method = registered.token_endpoint_auth_method
        return OAuthClient.model_validate(
            {
                "client_id": registered.client_id,
                "client_secret": registered.client_secret,
                "method": method or ("none" if registered.client_secret is None else "client_secret_basic"),
                "issuer": issuer,
                "redirect_uri": wanted.redirect_uri,
            }
        )

    async def _send(self, request: httpx2.Request, *, body: bool = True) -> httpx2.Response:
        self._safe(str(request.url))
        state = ConnectionState()
        transport = CheckedTransport(self.egress, ANY_HOST, ReceiptMeter(limit=MAX_DOCUMENT_BYTES), state)
        request.headers["accept-encoding"] = "identity"
        try:
            async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=None) as client:
                response = await client.send(request, stream=True)
                if body:
                    await response.aread()
                await response.aclose()
                return response
        except httpx2.TransportError as error:
            raise SignInFailed(f"{request.url.host}: {state.problem or type(error).__name__}") from error

    def _safe(self, url: str) -> str:
        """Return an address to which codes and tokens may be sent: https, or allowed by the operator."""
        try:
            parsed = parse_url(url)
        except UrlRefused as refused:
            raise SignInFailed(f"an address of the sign-in is refused: {refused}") from refused
        if parsed.scheme != "https" and not self.egress.trusts(parsed):
            raise SignInFailed(f"{parsed.host}: a sign-in needs https")
        return str(parsed)


def _identified(wanted: RequestToken) -> tuple[dict[str, str], dict[str, str]]:
    client = wanted.client
    headers = {"accept": "application/json"}
    if client.client_secret is None or client.method == "none":
        return {**wanted.form, "client_id": client.client_id}, headers
    if client.method == "client_secret_post":
        secret = {"client_id": client.client_id, "client_secret": client.client_secret}
        return {**wanted.form, **secret}, headers
    pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
    return wanted.form, {**headers, "authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _error_code(response: httpx2.Response) -> str:
    """Return only the error code of RFC 6749, because a description may repeat the request."""
    found = _CODE.search(response.content)
    return found[1].decode() if found else f"status {response.status_code}"
