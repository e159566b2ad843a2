"""Sign-in of the web page through the identity provider, and the roles that its tokens grant.

The page sends the user to the provider and brings back a code (with PKCE); the gateway exchanges it. So the
page needs no permission to reach the provider, and a secret of the client never reaches a browser. The
gateway keeps no state: the page holds `state` and `code_verifier`, and the browser the provider's refresh
token, in a cookie that is encrypted, that no script can read, and that only these operations receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Request, Response

from banksman.bus.secrets import SecretBox
from banksman.contracts.administration import Right
from banksman.contracts.errors import Forbidden, NotFound, Unauthorized
from banksman.contracts.wire import Stored, parse
from banksman.gateway.feature import Feature, Groundwork
from banksman.gateway.oidc.provider import SignInCode, TokenGrant
from banksman.gateway.operation.caller import ADMIN, PUBLIC, READ, Caller
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
    parameters: Mapping[str, str] | None = None
    """Further parameters of the authorization request."""
    end_session_endpoint: str | None = None
    """After a sign-out: where the browser ends the session at the provider; null if that is impossible."""
    takes_token: bool = False
    """Whether the page's token is the ID token with which the provider asks no question there."""


class BearerToken(Stored):
    """The bearer token of a user who signed in."""

    token: str
    expires_at: datetime | None
    renewable: bool
    """Whether the browser got a cookie with which `sign_in.renew` returns another token."""


class KeptSignIn(Stored):
    """The content of the cookie."""

    refresh_token: str
    tenant: str
    user: str


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
    """The caller's tenant, as the claim names it."""
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


COOKIE: Final = "banksman_sign_in"
COOKIE_CHARS = 3_800
"""Maximum characters of its value: browsers store 4,096 bytes with name and attributes."""
KEPT_S = 30 * 86_400
"""Seconds after the last renewal, after which a browser forgets the sign-in."""
COOKIE_OPTIONS: Final[Mapping[str, Any]] = {
    "path": "/v1/sign-in", "secure": True, "httponly": True, "samesite": "strict",
}  # fmt: skip
OF_BROWSERS = "browsers sign in, for requests over HTTP"

operations = Operations("keys")


@dataclass(frozen=True, slots=True)
class ProviderSignIns:
    settings: OidcSettings | None
    tokens: OidcTokens | None
    """None without a provider."""
    dispatcher: Dispatcher
    box: SecretBox | None
    """Seals the refresh tokens that browsers keep; None without a provider."""

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
            parameters=self.settings.authorization_parameters,
        )

    @operations.add(
        "sign_in.finish", "POST /v1/sign-in", right=PUBLIC, not_over_nats=OF_BROWSERS, include_in_schema=False
    )
    async def sign_in(self: Service, request: Request, response: Response) -> BearerToken:
        """Exchange a code for a token, and record the sign-in in the audit trail.

        Raises:
            NotFound: There is no provider.
            Unauthorized: The provider refuses the code, or its token is not for this gateway.
            Forbidden: The token names no tenant, or the user may neither chat nor approve.
        """
        if self.tokens is None:
            raise NotFound("sign-in", "provider")
        # The body is parsed here: without a provider, every request is refused alike.
        grant, caller = await self.tokens.sign_in(parse(SignInCode, await request.body()))
        if caller.rights.isdisjoint(READ):
            # Refused here and not at the websocket, whose close reason would name rights and no remedy.
            raise Forbidden(
                f"the account {caller.user} may neither chat nor approve here: "
                "an administrator can give it a role"
            )
        # The page signs users in before the gateway has connected to NATS.
        if (trail := self.dispatcher.trail) is not None:
            await trail.record(caller, SIGNED_IN, "http", tenant=caller.tenant, target=caller.user, reply={})
        return self._kept(grant, caller, response)

    @operations.add(
        "sign_in.renew",
        "POST /v1/sign-in/renew",
        right=PUBLIC,
        not_over_nats=OF_BROWSERS,
        include_in_schema=False,
    )
    async def renew_sign_in(self: Service, request: Request, response: Response) -> BearerToken:
        """Return another token of the account that signed in in this browser.

        Raises:
            Unauthorized: The browser has no such sign-in, or the provider ended it.
            Unavailable: The provider does not answer; the sign-in lasts.
        """
        kept = self._opened(request.cookies.get(COOKIE, ""))
        if self.tokens is None or kept is None:
            raise Unauthorized("this browser has no sign-in that can be renewed")
        grant, caller = await self.tokens.renew(kept.refresh_token)
        if (caller.tenant, caller.user) != (kept.tenant, kept.user):
            raise Unauthorized("the provider returned the token of another account")
        return self._kept(grant, caller, response)

    @operations.add(
        "sign_in.end",
        "DELETE /v1/sign-in",
        right=PUBLIC,
        status=200,
        not_over_nats=OF_BROWSERS,
        include_in_schema=False,
    )
    async def end_sign_in(self: Service, request: Request, response: Response) -> SignIn:
        """Let the browser forget the sign-in, and revoke its refresh token at a provider that can."""
        response.delete_cookie(COOKIE, **COOKIE_OPTIONS)
        if self.tokens is None or self.settings is None or self.settings.client_id is None:
            return SignIn()
        kept = self._opened(request.cookies.get(COOKIE, ""))
        return SignIn(
            end_session_endpoint=await self.tokens.end(kept and kept.refresh_token),
            client_id=self.settings.client_id,
            takes_token=self.settings.token == "id_token",
        )

    def _kept(self, grant: TokenGrant, caller: Caller, response: Response) -> BearerToken:
        value = ""
        if grant.refresh_token is not None and self.box is not None:
            kept = KeptSignIn(refresh_token=grant.refresh_token, tenant=caller.tenant, user=caller.user)
            value = self.box.seal(kept.model_dump_json(), COOKIE)
        renewable = 0 < len(value) <= COOKIE_CHARS
        if renewable:
            response.set_cookie(COOKIE, value, max_age=KEPT_S, **COOKIE_OPTIONS)
        else:
            # That of an earlier account must not stay.
            response.delete_cookie(COOKIE, **COOKIE_OPTIONS)
        return BearerToken(token=grant.token, expires_at=caller.expires_at, renewable=renewable)

    def _opened(self, value: str) -> KeptSignIn | None:
        try:
            text = None if self.box is None else self.box.open(value, COOKIE)
            return None if text is None else KeptSignIn.model_validate_json(text)
        except ValueError:
            return None

    @operations.add("identity_provider.list", "GET /context/identity-providers", right=ADMIN)
    async def list_identity_providers(self: Service, caller: CallerDep) -> Listing[IdentityProvider]:
        """List the providers (none or one) through which users of the tenant sign in, with their roles."""
        settings = self.settings
        if settings is None:
            return Listing[IdentityProvider](items=())
        names = {tenant: value for value, tenant in settings.tenants.items()}
        provider = IdentityProvider(
            issuer=settings.issuer,
            on_page=settings.client_id is not None,
            tenant=names.get(caller.tenant, caller.tenant),
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
    settings, tokens, box = base.settings.gateway.oidc, None, None
    if settings is not None:
        # The import of PyJWT costs 0.15 s of CPU and 15 MiB.
        from banksman.gateway.oidc.tokens import oidc_tokens

        tokens = await base.stack.enter_async_context(oidc_tokens(settings, base.background))
        base.keys.tokens = tokens
        box = SecretBox(base.settings.approvals.key())
    base.services.add(ProviderSignIns(settings, tokens, base.dispatcher, box))


FEATURE = Feature(operations, open=start)
