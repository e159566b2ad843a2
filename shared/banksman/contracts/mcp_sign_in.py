"""OAuth access to an MCP server, which a user grants by signing in."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.wire import Stored, Timestamp
from banksman.contracts.workspaces import WorkspacePlacement

MAX_URL_CHARS: Final = 2_000
RENEW_BEFORE: Final = timedelta(minutes=1)
"""Remaining lifetime below which a token is renewed before a call."""

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=MAX_URL_CHARS)]
Token = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=16_000)]
"""An OAuth token or secret: visible ASCII characters, which are valid in headers."""
Text = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]+$", max_length=2_000)]
"""An id, a scope or an issuer."""


class OAuthClient(Stored):
    """The registration of this platform at an authorization server."""

    client_id: Text
    client_secret: Token | None = Field(default=None, repr=False)
    method: Literal["none", "client_secret_post", "client_secret_basic"] = "none"
    """How it authenticates at the token endpoint."""
    issuer: Text | None = None
    """The authorization server that registered it; None for a client that an administrator configured."""
    redirect_uri: Url | None = None
    """The redirect URI that it was registered with; None for a client that an administrator configured."""


class Authorization(Stored):
    """The authorization server and the OAuth client of a sign-in."""

    issuer: Text
    states_issuer: bool = False
    """Whether the authorization server adds its identity (`iss`) to the redirect (RFC 9207)."""
    authorization_endpoint: Url
    token_endpoint: Url
    resource: Url
    """The resource that the token is for (RFC 8707)."""
    scope: Text | None = None
    client: OAuthClient


class AccessToken(Stored):
    """The tokens that a token endpoint granted."""

    access_token: Token = Field(repr=False)
    refresh_token: Token | None = Field(default=None, repr=False)
    expires_in_s: int | None = Field(default=None, ge=0, le=10**9)
    """None if the server does not state when it expires."""


class PendingSignIn(Stored):
    """A started sign-in: the user was sent to the authorization server. It completes once or expires."""

    state: str
    """SHA-256 of the random part of `state`."""
    user: str
    browser: str
    """SHA-256 of the cookie of the browser that started it."""
    expires_at: Timestamp
    sealed: str = Field(repr=False)
    """An encrypted `PendingSecrets`."""


class PendingSecrets(Stored):
    """The secrets for the exchange of the authorization code."""

    authorization: Authorization
    redirect_uri: Url
    code_verifier: str = Field(repr=False)


class SignedIn(Stored):
    """The access that a user granted."""

    user: str
    at: Timestamp
    expires_at: Timestamp | None = None
    """Expiry of the token; None if the server did not state it."""
    renewing_until: Timestamp | None = None
    """Until this time, only one process renews the token."""
    sealed: str = Field(repr=False)
    """An encrypted `Access`."""

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the token needs no renewal before a call."""
        return self.expires_at is None or now + RENEW_BEFORE < self.expires_at

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at is None or now < self.expires_at

    def is_renewing(self, now: datetime) -> bool:
        """Return whether a process renews the token now."""
        return self.renewing_until is not None and now < self.renewing_until


class Access(Stored):
    """The tokens of a server, and the authorization that renews them."""

    authorization: Authorization
    token: AccessToken


class _RunnerOperation(Stored):
    """A request that any runner serves, sent like a file request; it uses no workspace."""

    place: WorkspacePlacement = WorkspacePlacement()


class DiscoverSignIn(_RunnerOperation):
    """Discovers the authorization server of an MCP server, and registers this platform there."""

    op: Literal["mcp.sign_in"] = "mcp.sign_in"
    url: Url
    redirect_uri: Url
    client: OAuthClient | None = None
    """The client to use; None, or a client of another authorization server, registers a new one."""


class RequestToken(_RunnerOperation):
    """Requests a token of an authorization server."""

    op: Literal["mcp.token"] = "mcp.token"
    token_endpoint: Url
    client: OAuthClient
    form: dict[str, str] = Field(max_length=8, repr=False)
    """The form fields of the grant, without those that identify the client."""
