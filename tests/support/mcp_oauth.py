"""An MCP server of the official SDK that demands OAuth, with its authorization server, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    ProviderTokenVerifier,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.lowlevel.server import Server
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from pydantic import AnyHttpUrl

from banksman.runtime.health import listening

SECOND_RENEWAL_S = 0.5
"""Seconds that a renewal waits for a second one, which must not come."""


@dataclass
class AuthorizationServer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """`account` consents at once. A refresh token is valid once, and ends the user's token before it."""

    account: str = "ada"
    """Who opens its pages: the account there of the person who signs in next."""
    accounts: dict[str, str] = field(default_factory=dict[str, str])
    """Whose each code and token is."""

    expires_in: int = 3600
    refuses: bool = False
    """Whether it refuses each refresh token."""
    denies: bool = False
    """Whether its user refuses to give access."""
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict[str, Any])
    codes: dict[str, AuthorizationCode] = field(default_factory=dict[str, Any])
    tokens: dict[str, AccessToken] = field(default_factory=dict[str, Any])
    refreshing: dict[str, RefreshToken] = field(default_factory=dict[str, Any])
    issued: set[str] = field(default_factory=set[str])
    """All tokens that it ever issued."""
    renewals: int = 0
    before_grant: Callable[[], Awaitable[object]] = field(default=lambda: asyncio.sleep(0))
    """Called while a code is exchanged."""
    _second: asyncio.Event = field(default_factory=asyncio.Event)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.denies:
            raise AuthorizeError("access_denied")
        code = secrets.token_urlsafe(32)
        self.accounts[code] = self.account
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        await self.before_grant()
        code = authorization_code
        return self._granted(client.client_id, code.scopes, code.resource, self.accounts[code.code])

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refreshing.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.renewals += 1
        if self.renewals > 1:
            self._second.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECOND_RENEWAL_S):
                await self._second.wait()
        if self.refuses or self.refreshing.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant", f"{refresh_token.token} is not valid")
        account = self.accounts[refresh_token.token]
        self.end_tokens(account)
        return self._granted(client.client_id, scopes, refresh_token.resource, account)

    def end_tokens(self, account: str) -> None:
        """Accept the access tokens of a user no longer."""
        self.tokens = {token: one for token, one in self.tokens.items() if self.accounts[token] != account}

    def revoke(self, account: str) -> None:
        """End all access of a user, as a person can in the settings of a vendor."""
        self.end_tokens(account)
        self.refreshing = {
            token: one for token, one in self.refreshing.items() if self.accounts[token] != account
        }

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    def _granted(self, client: str, scopes: list[str], resource: str | None, account: str) -> OAuthToken:
        # Not a known vendor's token format, so that redaction can recognise only the value itself.
        token, refresh = secrets.token_hex(20), secrets.token_hex(20)
        self.tokens[token] = AccessToken(token=token, client_id=client, scopes=scopes, resource=resource)
        self.refreshing[refresh] = RefreshToken(
            token=refresh, client_id=client, scopes=scopes, resource=resource
        )
        self.issued |= {token, refresh}
        self.accounts |= dict.fromkeys((token, refresh), account)
        return OAuthToken(
            access_token=token,
            refresh_token=refresh,
            expires_in=self.expires_in,
            scope=" ".join(scopes) or None,
        )


@dataclass
class Protected:
    """A running server, and the tokens of the calls of its tool."""

    url: str
    authorizations: AuthorizationServer
    description: str = "Returns the headers of its request."
    """The description of its tool."""
    tokens: list[str] = field(default_factory=list[str])
    """The tokens of the calls."""

    @property
    def callers(self) -> list[str]:
        """Whose account each call used."""
        return [self.authorizations.accounts[token] for token in self.tokens]


@asynccontextmanager
async def protected(port: int) -> AsyncGenerator[Protected]:
    """Serve on a port while the block runs: one tool, `echo`, which returns the headers of its request."""
    origin = f"http://127.0.0.1:{port}"
    state = Protected(f"{origin}/mcp", AuthorizationServer())

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[Tool(name="echo", description=state.description, input_schema={"type": "object"})]
        )

    async def call(context: Any, params: Any) -> CallToolResult:
        headers = dict(context.request.headers)
        state.tokens.append(headers["authorization"].removeprefix("Bearer "))
        return CallToolResult(content=[TextContent(text=json.dumps(headers))])

    app = Server("protected", on_list_tools=list_tools, on_call_tool=call).streamable_http_app(
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(origin),
            resource_server_url=AnyHttpUrl(state.url),
            required_scopes=["tools"],
            validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["tools"], default_scopes=["tools"]
            ),
        ),
        token_verifier=ProviderTokenVerifier(state.authorizations),
        auth_server_provider=state.authorizations,
    )
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_config=None, lifespan="on", timeout_graceful_shutdown=1
    )
    async with listening(config):
        yield state
