"""Sign-in through the identity provider, and the roles that its tokens grant."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request

from banksman.gateway.oidc.sign_ins import IdentityProvider, ProviderSignIns, SignedIn, SignIn
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.operation.caller import ADMIN, PUBLIC
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided

SignIns = Annotated[ProviderSignIns, provided(ProviderSignIns)]
OF_BROWSERS = "browsers sign in, for requests over HTTP"

operations = Operations("keys")


@operations.add("identity_provider.list", "GET /context/identity-providers", right=ADMIN)
async def list_identity_providers(sign_ins: SignIns, caller: CallerDep) -> Listing[IdentityProvider]:
    """List the providers (none or one) through which users of the tenant sign in, with their roles."""
    return Listing[IdentityProvider](items=sign_ins.providers(caller))


@operations.add(
    "sign_in.read",
    "GET /v1/sign-in",
    right=PUBLIC,
    not_over_nats=OF_BROWSERS,
    include_in_schema=False,
)
async def read_sign_in(sign_ins: SignIns) -> SignIn:
    """Return where users sign in.

    Without a provider the fields are null: browsers would log an error each time a user opens the page.
    """
    return await sign_ins.where()


@operations.add(
    "sign_in.finish",
    "POST /v1/sign-in",
    right=PUBLIC,
    not_over_nats=OF_BROWSERS,
    include_in_schema=False,
)
async def sign_in(request: Request, sign_ins: SignIns) -> SignedIn:
    """Exchange a code for a token."""
    # The body is parsed here: without a provider, every request is refused alike.
    return await sign_ins.sign_in(await request.body())
