"""Access to a server of the Model Context Protocol that demands OAuth, as a user gives it by signing in."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.wire import Stored, Timestamp
from banksman.contracts.workspaces import WorkspacePlacement

MAX_URL_CHARS: Final = 2_000
RENEW_BEFORE: Final = timedelta(minutes=1)
"""A token that expires sooner is renewed before a call."""

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=MAX_URL_CHARS)]
Token = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=16_000)]
"""A token or a secret of OAuth: visible ASCII characters, as headers carry them."""
Text = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]+$", max_length=2_000)]
"""An id, a scope or an issuer."""


class OAuthClient(Stored):
    """What an authorization server knows this platform as."""

    client_id: Text
    client_secret: Token | None = Field(default=None, repr=False)
    method: Literal["none", "client_secret_post", "client_secret_basic"] = "none"
    """How it proves its secret to the token endpoint."""
    issuer: Text | None = None
    """The only authorization server that registered it; None for a client that an administrator named."""
    redirect_uri: Url | None = None
    """The only address of ours that it was registered with; None as above."""


class Authorization(Stored):
    """Where and as whom a user signs in for a server."""

    issuer: Text
    states_issuer: bool = False
    """Whether the authorization server names itself (`iss`) when it sends the user back."""
    authorization_endpoint: Url
    token_endpoint: Url
    resource: Url
    """What the token is for (RFC 8707)."""
    scope: Text | None = None
    client: OAuthClient


class AccessToken(Stored):
    """What a token endpoint granted."""

    access_token: Token = Field(repr=False)
    refresh_token: Token | None = Field(default=None, repr=False)
    expires_in_s: int | None = Field(default=None, ge=0, le=10**9)
    """None if the server does not state when it expires."""


class PendingSignIn(Stored):
    """A user was sent to the authorization server. It ends once, or with its time."""

    state: str
    """SHA-256 of the random part of `state`."""
    user: str
    browser: str | None = None
    """SHA-256 of the cookie that the browser got in which it was begun; None if an older gateway began it."""
    expires_at: Timestamp
    sealed: str = Field(repr=False)
    """An encrypted `PendingSecrets`."""


class PendingSecrets(Stored):
    """What the exchange of the code needs."""

    authorization: Authorization
    redirect_uri: Url
    code_verifier: str = Field(repr=False)


class SignedIn(Stored):
    """The access that a user gave."""

    user: str
    at: Timestamp
    expires_at: Timestamp | None = None
    """When its token expires; None if the server did not state it."""
    renewing_until: Timestamp | None = None
    """Until then one process renews the token, and no other does."""
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
    """The tokens of a server, and where they are renewed."""

    authorization: Authorization
    token: AccessToken


class _RunnerOperation(Stored):
    """A request that any runner serves; it is sent as file requests are, and uses no workspace."""

    place: WorkspacePlacement = WorkspacePlacement()


class DiscoverSignIn(_RunnerOperation):
    """Finds where users sign in for a server of the Model Context Protocol, and registers us there."""

    op: Literal["mcp.sign_in"] = "mcp.sign_in"
    url: Url
    redirect_uri: Url
    client: OAuthClient | None = None
    """A client to use; None, or one of another authorization server, registers a new one."""


class RequestToken(_RunnerOperation):
    """Requests a token of an authorization server."""

    op: Literal["mcp.token"] = "mcp.token"
    token_endpoint: Url
    client: OAuthClient
    form: dict[str, str] = Field(max_length=8, repr=False)
    """The grant: its fields without those that identify the client."""
