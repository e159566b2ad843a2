"""The claims by which an identity provider gives a user a tenant and rights. No secret is returned."""

from __future__ import annotations

from fastapi import Request

from banksman.contracts.api import Right
from banksman.contracts.wire import Stored
from banksman.gateway.identity.auth import Keys
from banksman.gateway.identity_settings import OidcSettings
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.operation.caller import Caller
from banksman.gateway.service.dependencies import AdminDep
from banksman.gateway.service.routing import router

routes = router("keys")


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


@routes.get("/context/identity-providers")
async def list_identity_providers(request: Request, caller: AdminDep) -> Listing[IdentityProvider]:
    """List the providers (none or one) through which users of the tenant sign in, with their roles."""
    keys: Keys = request.app.state.keys
    return Listing[IdentityProvider](items=() if keys.oidc is None else (_described(keys.oidc, caller),))


def _described(settings: OidcSettings, caller: Caller) -> IdentityProvider:
    return IdentityProvider(
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
