"""The target of an MCP call: the configuration with which its runner reaches the MCP server.

The configuration holds secrets. It is read when a call is sent, and only the request to the runner that
executes the call contains it: no event, log line or model request does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.mcp_access import McpAccess
from banksman.bus.names import MCP
from banksman.bus.sealing import SecretBox
from banksman.bus.tenant_secrets import TenantSecrets
from banksman.contracts import subjects
from banksman.contracts.calls import CallRequest, FileReply
from banksman.contracts.mcp import McpServer, McpTarget, mcp_server_of, offered_name
from banksman.contracts.mcp_sign_in import RequestToken

TOKEN_TIMEOUT_S = 15.0
"""Seconds to wait for a runner's reply to a token request."""


class McpTargets:
    """The configured servers of all tenants."""

    def __init__(self, bus: Bus, box: SecretBox, secrets: TenantSecrets, now: Callable[[], datetime]) -> None:
        self._bus = bus
        self._servers = Bucket(bus, MCP, McpServer)
        self._secrets = secrets
        self._access = McpAccess(bus, box, now)

    async def with_target(self, request: CallRequest, runner: str) -> CallRequest:
        """Return a request with the MCP target of its call; unchanged for a tool of no MCP server.

        A token that expires soon is renewed through the runner of the call. A tool that is no longer approved
        gets no target, and the runner refuses it as an unknown tool.

        Raises:
            SecretUnusable: A secret of the server is not set, or cannot be used.
            AccessMissing: An administrator must sign in at the server, or its token could not be renewed.
            Unavailable: The broker or the runner did not respond.
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
        resolved = await self._secrets.resolved(request.tenant, server_id, entry.value.transport)

        async def send(wanted: RequestToken) -> FileReply:
            subject = subjects.files(runner, request.tenant, request.conversation_id)
            reply = await self._bus.request(subject, wanted.model_dump_json().encode(), TOKEN_TIMEOUT_S)
            return FileReply.model_validate_json(reply)

        transport = await self._access.authorized(request.tenant, entry, resolved.transport, send)
        target = McpTarget(transport=transport, tool=tool.name, digest=tool.digest, hidden=resolved.hidden)
        return request.model_copy(update={"mcp": target})
