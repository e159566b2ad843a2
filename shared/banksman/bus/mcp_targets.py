"""Where the runner of a call finds a tool of a server of the Model Context Protocol.

The configuration of a server holds secrets. It is read when a call is sent, and is a part of the request to
the one runner that executes the call: no event, log or model has it.
"""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import MCP
from banksman.bus.tenant_secrets import TenantSecrets
from banksman.contracts.calls import CallRequest
from banksman.contracts.mcp import McpServer, McpTarget, mcp_server_of, offered_name


class McpTargets:
    """The configured servers of all tenants."""

    def __init__(self, bus: Bus, secrets: TenantSecrets) -> None:
        self._servers = Bucket(bus, MCP, McpServer)
        self._secrets = secrets

    async def with_target(self, request: CallRequest) -> CallRequest:
        """Return a request with the target of its call; unchanged if its tool is none of a server.

        A tool that is no longer approved has no target: the runner refuses it as an unknown tool.

        Raises:
            SecretUnusable: A secret of its server is not set, or cannot be used.
            Unavailable: The broker did not respond.
        """
        name = request.call.name
        server_id = mcp_server_of(name)
        if server_id is None:
            return request
        entry = await self._servers.get(f"{request.tenant}.{server_id}")
        approved = () if entry is None else entry.value.tools
        tool = next((tool for tool in approved if offered_name(server_id, tool.name) == name), None)
        if entry is None or tool is None:
            return request
        filled = await self._secrets.filled(request.tenant, server_id, entry.value.transport)
        target = McpTarget(
            transport=filled.transport, tool=tool.name, digest=tool.digest, hidden=filled.hidden
        )
        return request.model_copy(update={"mcp": target})
