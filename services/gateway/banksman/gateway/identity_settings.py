"""The settings of authentication: API keys and an OpenID Connect provider."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, SecretStr, field_validator

from banksman.contracts.administration import DEFAULT_RIGHTS, RIGHTS, Right
from banksman.contracts.wire import Token
from banksman.runtime.settings import Section

Mode = Literal["context", "passthrough"]
"""
context      conversations, runs, approvals, files, assistants, prompts, workflows, the websocket
passthrough  the model APIs under `/v1`
"""


class ApiKey(Section):
    """An API key of a client, of which only the digest is stored."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the key, 64 hex digits."""
    tenant: Token
    user: str = Field(min_length=1, max_length=200)
    modes: tuple[Mode, ...] = ("context", "passthrough")
    may_approve: bool = True
    """False removes the right `approve`."""
    rights: tuple[Right, ...] = DEFAULT_RIGHTS
    expires_at: AwareDatetime | None = None
    """None for a key that never expires."""


class OidcSettings(Section):
    """An OpenID Connect provider whose tokens are accepted as bearer tokens."""

    issuer: str
    """The issuer exactly as tokens name it: https, or http on the loopback interface."""
    audience: str
    """The audience of tokens for this gateway."""
    tenant_claim: str = "tenant"
    """The claim with the tenant; `a.b` is the member `b` of the claim `a`."""
    default_tenant: Token | None = None
    """The tenant of tokens without that claim; None refuses them."""
    user_claim: str = "sub"
    rights_claim: str = "rights"
    """The claim with a list of rights, or of values that `rights` maps to rights."""
    rights: Mapping[str, tuple[Right, ...]] = {}
    """Rights by value of that claim; empty if the values are rights. Other values grant nothing."""
    default_rights: tuple[Right, ...] = ()
    """The rights of tokens without that claim."""
    client_id: str | None = None
    """The web page's client, whose tokens are accepted too; None offers no sign-in on the page."""
    client_secret: SecretStr | None = None
    """None for a public client. Only the gateway uses it; the page does not receive it."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    token: Literal["id_token", "access_token"] = "id_token"
    """The token with which the page uses the gateway."""
    key_pause_s: float = Field(default=10.0, ge=0)
    """Minimum seconds between two fetches of the provider's keys for tokens that name an unknown key."""

    @property
    def audiences(self) -> tuple[str, ...]:
        return tuple(one for one in (self.audience, self.client_id) if one is not None)

    @property
    def roles(self) -> Mapping[str, tuple[Right, ...]]:
        """The rights of each value of `rights_claim`; other values grant nothing."""
        return self.rights or {right: (right,) for right in RIGHTS}

    @field_validator("issuer")
    @classmethod
    def _secure(cls, issuer: str) -> str:
        if not is_secure_url(issuer):
            raise ValueError("must be an https address, or an http address of the loopback interface")
        return issuer


def is_secure_url(url: str) -> bool:
    """Return whether requests to a URL cannot be read or changed in transit: https, or loopback."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
    )


def is_loopback(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"
