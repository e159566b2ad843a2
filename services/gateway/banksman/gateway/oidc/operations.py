"""Sign-in of the web page through the identity provider, and the roles that its tokens grant.

The page sends the user to the provider and brings back a code (with PKCE); the gateway exchanges it. So the
page needs no permission to reach the provider, and a secret of the client never reaches a browser. The
gateway keeps no state: the page holds `state` and `code_verifier`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Request

from banksman.contracts.administration import Right
from banksman.contracts.errors import Forbidden, NotFound
from banksman.contracts.wire import Stored, parse
from banksman.gateway.feature import Feature, Groundwork
from banksman.gateway.oidc.provider import SignInCode
from banksman.gateway.operation.caller import ADMIN, PUBLIC, READ
from banksman.gateway.operation.declaration import Audit, Operations
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import CallerDep, Listing, provided
from banksman.gateway.settings import OidcSettings

if TYPE_CHECKING:
    from banksman.gateway.oidc.tokens import OidcTokens

SIGNED_IN: Final = Audit("user.signed_in")
"""Recorded here, because the caller is known only after the operation."""


class SignIn(Stored):
    """Where users sign in. All fields are null if the gateway knows no provider."""

    authorization_endpoint: str | None = None
    client_id: str | None = None
    scope: str | None = None


class BearerToken(Stored):
    """The bearer token of a user who signed in."""

    token: str
    expires_at: datetime | None


class Role(Stored):
    """The rights that a value of the rights claim grants."""

    value: str
    rights: tuple[Right, ...]


class IdentityProvider(Stored):
    """A provider whose tokens open this gateway, and how its claims name the caller's tenant and rights."""

    issuer: str
    on_page: bool
    """Whether the page offers to sign in through it."""
    tenant: str
    """The caller's tenant."""
    tenant_claim: str
    """The claim with the tenant; `a.b` is the member `b` of the claim `a`."""
    default_tenant: bool
    """Whether tokens without that claim are for this tenant."""
    rights_claim: str
    """The claim with values of `roles`. The caller has the rights of all its values."""
    roles: tuple[Role, ...]
    """Values and their rights. Values that grant the right `operator` are listed for operators only."""
    default_rights: tuple[Right, ...]
    """The rights of tokens without the claim `rights_claim`."""


OF_BROWSERS = "browsers sign in, for requests over HTTP"

operations = Operations("keys")


@dataclass(frozen=True, slots=True)
class ProviderSignIns:
    settings: OidcSettings | None
    tokens: OidcTokens | None
    """None without a provider."""
    dispatcher: Dispatcher

    @operations.add(
        "sign_in.read", "GET /v1/sign-in", right=PUBLIC, not_over_nats=OF_BROWSERS, include_in_schema=False
    )
    async def read_sign_in(self: Service) -> SignIn:
        """Return where users sign in.

        Without a provider the fields are null: browsers would log an error each time a user opens the page.
        """
        if self.tokens is None or self.settings is None or self.settings.client_id is None:
            return SignIn()
        return SignIn(
            authorization_endpoint=await self.tokens.authorization_endpoint(),
            client_id=self.settings.client_id,
            scope=" ".join(self.settings.scopes),
        )

    @operations.add(
        "sign_in.finish",
        "POST /v1/sign-in",
        right=PUBLIC,
        not_over_nats=OF_BROWSERS,
        include_in_schema=False,
    )
    async def sign_in(self: Service, request: Request) -> BearerToken:
        """Exchange a code for a token, and record the sign-in in the audit trail.

        Raises:
            NotFound: There is no provider.
            Unauthorized: The provider refuses the code, or its token is not for this gateway.
            Forbidden: The token names no tenant, or the user may neither chat nor approve.
        """
        if self.tokens is None:
            raise NotFound("sign-in", "provider")
        # The body is parsed here: without a provider, every request is refused alike.
        token, caller = await self.tokens.sign_in(parse(SignInCode, await request.body()))
        if caller.rights.isdisjoint(READ):
            # Refused here and not at the websocket, whose close reason would name rights and no remedy.
            raise Forbidden(
                f"the account {caller.user} may neither chat nor approve here: "
                "an administrator can give it a role"
            )
        # The page signs users in before the gateway has connected to NATS.
        if (trail := self.dispatcher.trail) is not None:
            await trail.record(caller, SIGNED_IN, "http", tenant=caller.tenant, target=caller.user, reply={})
        return BearerToken(token=token, expires_at=caller.expires_at)

    @operations.add("identity_provider.list", "GET /context/identity-providers", right=ADMIN)
    async def list_identity_providers(self: Service, caller: CallerDep) -> Listing[IdentityProvider]:
        """List the providers (none or one) through which users of the tenant sign in, with their roles."""
        settings = self.settings
        if settings is None:
            return Listing[IdentityProvider](items=())
        provider = IdentityProvider(
            issuer=settings.issuer,
            on_page=settings.client_id is not None,
            tenant=caller.tenant,
            tenant_claim=settings.tenant_claim,
            default_tenant=settings.default_tenant == caller.tenant,
            rights_claim=settings.rights_claim,
            roles=tuple(
                Role(value=value, rights=rights)
                for value, rights in settings.roles.items()
                if "operator" not in rights or "operator" in caller.rights
            ),
            default_rights=settings.default_rights,
        )
        return Listing[IdentityProvider](items=(provider,))


Service = Annotated[ProviderSignIns, provided(ProviderSignIns)]


async def start(base: Groundwork) -> None:
    """Let the HTTP server accept the tokens of the provider, if the settings name one."""
    settings, tokens = base.settings.gateway.oidc, None
    if settings is not None:
        # The import of PyJWT costs 0.15 s of CPU and 15 MiB.
        from banksman.gateway.oidc.tokens import oidc_tokens

        tokens = await base.stack.enter_async_context(oidc_tokens(settings, base.background))
        base.keys.tokens = tokens
    base.services.add(ProviderSignIns(settings, tokens, base.dispatcher))


FEATURE = Feature(operations, open=start)
