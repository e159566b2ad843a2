"""Requests of gateways for the tools of a server."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.calls import FileReply, FindMcpTools
from banksman.contracts.workspace_tools import BASH
from banksman.tool_runner.mcp.servers import McpServers, NotFound
from banksman.tool_runner.workspaces.turns import Turns
from banksman.tool_runner.workspaces.workspace import WorkspaceStore


@dataclass(frozen=True, slots=True)
class McpFinder:
    """Lists the tools of servers, each in the turn of a command."""

    servers: McpServers
    workspaces: WorkspaceStore
    turns: Turns

    async def find(self, tenant: str, conversation_id: str, request: FindMcpTools) -> FileReply:
        """Return the tools of a server, or why they cannot be listed."""
        async with self.turns.turn(BASH.name, tenant, conversation_id):
            workspace = self.workspaces.get(tenant, conversation_id)
            try:
                found = await self.servers.find(request.transport, workspace, request.hidden)
                return FileReply(tools=found)
            except NotFound as error:
                return FileReply(error=str(error))
