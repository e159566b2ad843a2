"""Builds what identifies clients: created keys, tickets; and the secrets of tenants."""

from __future__ import annotations

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.api_keys import ApiKeys
from banksman.gateway.identity.operations import operations
from banksman.gateway.identity.tenant_secrets import SecretStore
from banksman.gateway.identity.tickets import Tickets


async def build(base: Foundation) -> None:
    """Load the keys that clients created, and build the tickets and the secrets."""
    api_keys = await base.stack.enter_async_context(ApiKeys(base.bus, base.keys, base.clock))
    base.services.add(api_keys, Tickets(base.bus, base.clock), SecretStore(base.bus, base.box, base.clock))


FEATURE = Feature(operations, build)
