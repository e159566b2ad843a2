"""Requests about MCP servers other than calls: listing tools and preparing sign-ins."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.calls import FileReply, FindMcpTools
from banksman.contracts.mcp_sign_in import DiscoverSignIn, RequestToken
from banksman.contracts.workspace_tools import BASH
from banksman.tool_runner.mcp.servers import ListingFailed, McpServers, import_sdk
from banksman.tool_runner.workspaces.registry import Turns
from banksman.tool_runner.workspaces.workspace import WorkspaceStore


@dataclass(frozen=True, slots=True)
class McpFinder:
    """Lists the tools of servers and prepares sign-ins.

    Listing takes the turn of a command, because a server may be a program that runs in the workspace.
    """

    servers: McpServers
    workspaces: WorkspaceStore
    turns: Turns

    async def list_tools(self, tenant: str, conversation_id: str, request: FindMcpTools) -> FileReply:
        """Return the tools of a server, or why they cannot be listed."""
        async with self.turns.turn(BASH.name, tenant, conversation_id):
            workspace = self.workspaces.get(tenant, conversation_id)
            try:
                found = await self.servers.list_tools(request.transport, workspace, request.hidden)
                return FileReply(tools=found)
            except ListingFailed as error:
                return FileReply(error=str(error), needs_sign_in=error.needs_sign_in)

    async def sign_in(self, request: DiscoverSignIn | RequestToken) -> FileReply:
        """Return the endpoints of a sign-in or a token; after a failure, the reason."""
        await import_sdk()
        from banksman.tool_runner.mcp.authorization import Authorizations, GrantRefused, SignInFailed

        authorizations = Authorizations(self.servers.egress)
        try:
            if isinstance(request, DiscoverSignIn):
                return FileReply(authorization=await authorizations.discover(request))
            return FileReply(token=await authorizations.token(request))
        except SignInFailed as error:
            return FileReply(error=str(error), refused=isinstance(error, GrantRefused))
