"""Secrets of the tenant for its tools."""

from __future__ import annotations

from banksman.bus.control import Received
from banksman.contracts.errors import ErrorCode
from banksman.contracts.tenant_secrets import SecretDescription
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints, Deleted, caller_of, named_by, tenant_of
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.bodies import SecretBody
from banksman.gateway.service.gateway import Gateway


def add_secrets(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve secrets. No subject returns a value."""

    @api.serve("secret", "list")
    async def list_secrets(message: Received) -> Listing[SecretDescription]:
        """List the names of the secrets."""
        return Listing[SecretDescription](items=tuple(await gateway.secrets.list(tenant_of(message))))

    @api.serve("secret", "delete", "{secret}", errors=(ErrorCode.NOT_FOUND,))
    async def delete_secret(message: Received) -> Deleted:
        """Delete a secret."""
        await gateway.secrets.delete(tenant_of(message), named_by(message))
        return Deleted(id=named_by(message))

    @api.serve("secret", "set", "{secret}", errors=(ErrorCode.CONFLICT,))
    async def set_secret(request: SecretBody, message: Received) -> SecretDescription:
        """Set a secret."""
        name = named_by(message)
        return await gateway.secrets.set(caller_of(message), name, request.value, request.servers)
