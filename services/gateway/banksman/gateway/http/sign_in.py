"""Sign-in of the web page through an OpenID Connect provider, by authorization code with PKCE.

The page sends the user to the provider and brings back a code; the gateway exchanges it. So the page needs no
permission to reach the provider, and a secret of the client never reaches a browser. The gateway keeps no
state: the page holds `state` and `code_verifier`.
"""

from __future__ import annotations

from datetime import datetime

from fastapi import Request
from pydantic import Field

from banksman.contracts.errors import Forbidden, NotFound
from banksman.contracts.wire import Stored, Wire, parse
from banksman.gateway.audit.audited import SIGNED_IN
from banksman.gateway.identity.auth import Keys
from banksman.gateway.oidc.provider import Code
from banksman.gateway.operation.caller import READ
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.routing import LazyRouter

FIELD_CHARS = 4096

routes = LazyRouter(include_in_schema=False)


class SignIn(Stored):
    """Where users sign in. All fields are null if the gateway knows no provider."""

    authorization_endpoint: str | None = None
    client_id: str | None = None
    scope: str | None = None


class SignInCode(Wire):
    """The code that a user brought back from the provider."""

    code: str = Field(min_length=1, max_length=FIELD_CHARS)
    code_verifier: str = Field(min_length=1, max_length=FIELD_CHARS)
    redirect_uri: str = Field(min_length=1, max_length=FIELD_CHARS)


class SignedIn(Stored):
    """The bearer token of a user who signed in."""

    token: str
    expires_at: datetime | None


@routes.get("/v1/sign-in")
async def read_sign_in(request: Request) -> SignIn:
    """Return where users sign in.

    Without a provider the fields are null: browsers would log an error each time a user opens the page.
    """
    keys = _keys(request)
    settings = keys.oidc
    if keys.tokens is None or settings is None or settings.client_id is None:
        return SignIn()
    return SignIn(
        authorization_endpoint=await keys.tokens.authorization_endpoint(),
        client_id=settings.client_id,
        scope=" ".join(settings.scopes),
    )


@routes.post("/v1/sign-in")
async def sign_in(request: Request) -> SignedIn:
    """Exchange a code for a token."""
    keys = _keys(request)
    if keys.tokens is None:
        raise NotFound("sign-in", "provider")
    given = parse(SignInCode, await request.body())
    token, caller = await keys.tokens.sign_in(Code(given.code, given.code_verifier, given.redirect_uri))
    if caller.rights.isdisjoint(READ):
        # Refused here and not at the websocket, whose close reason would name rights and no remedy.
        raise Forbidden(
            f"the account {caller.user} may neither chat nor approve here: "
            "an administrator can give it a role"
        )
    gateway: Gateway | None = request.app.state.gateway
    # The page signs users in before the gateway has connected to NATS.
    if gateway is not None:
        await gateway.trail.record(
            caller, SIGNED_IN, "http", tenant=caller.tenant, target=caller.user, reply={}
        )
    return SignedIn(token=token, expires_at=caller.expires_at)


def _keys(request: Request) -> Keys:
    return request.app.state.keys
