"""The requests of a sign-in to an authorization server, and the redirect from it (OAuth 2.1, RFC 9207)."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit

from banksman.contracts.errors import Conflict
from banksman.contracts.mcp import Authorization, PendingSecrets, RequestToken


@dataclass(frozen=True, slots=True)
class Returned:
    """The parameters with which the authorization server redirected a user."""

    state: str = field(repr=False)
    code: str | None = field(repr=False)
    issuer: str | None
    error: str | None

    @classmethod
    def at(cls, url: str) -> Self:
        """Return the parameters of the address to which the browser was redirected."""
        query = parse_qs(urlsplit(url).query)

        def value(name: str) -> str | None:
            return query.get(name, [None])[0]

        return cls(value("state") or "", value("code"), value("iss"), value("error"))


def check_issuer(authorization: Authorization, issuer: str | None) -> None:
    """Check that a code comes from the authorization server to which the user was sent (RFC 9207).

    Raises:
        Conflict: The redirect names another issuer, or none although the authorization server announced it.
    """
    if issuer is None and not authorization.states_issuer:
        return
    if issuer != authorization.issuer:
        raise Conflict("the code comes from another authorization server")


def exchange(kept: PendingSecrets, code: str) -> RequestToken:
    """Return the request for a token in exchange for a code."""
    return RequestToken(
        token_endpoint=kept.authorization.token_endpoint,
        client=kept.authorization.client,
        form={
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": kept.redirect_uri,
            "code_verifier": kept.code_verifier,
            "resource": kept.authorization.resource,
        },
    )


def authorization_url(found: Authorization, redirect_uri: str, state: str, verifier: str) -> str:
    """Return the address of the authorization server's page, with the parameters of this sign-in."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": found.client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": found.resource,
        **({"scope": found.scope} if found.scope else {}),
    }
    separator = "&" if "?" in found.authorization_endpoint else "?"
    return f"{found.authorization_endpoint}{separator}{urlencode(query)}"
