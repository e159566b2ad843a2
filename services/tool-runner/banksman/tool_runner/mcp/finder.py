"""Requests of a gateway about servers of the Model Context Protocol, which a runner connects to."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.runner_requests import (
    DiscoverSignIn,
    FileReply,
    FindMcpTools,
    GetMcpPrompt,
    RequestToken,
)
from banksman.contracts.workspace_tools import BASH
from banksman.tool_runner.mcp.connection import import_sdk
from banksman.tool_runner.mcp.servers import ListingFailed, McpClient
from banksman.tool_runner.workspaces.registry import CallTurns
from banksman.tool_runner.workspaces.workspace import WorkspaceStore


@dataclass(frozen=True, slots=True)
class McpFinder:
    """Lists the tools of servers, gets prompts and prepares sign-ins.

    Reading takes the turn of a command, because a server may be a program that runs in the workspace.
    """

    servers: McpClient
    workspaces: WorkspaceStore
    turns: CallTurns

    async def read(
        self, tenant: str, conversation_id: str, request: FindMcpTools | GetMcpPrompt
    ) -> FileReply:
        async with self.turns.turn(BASH.name, tenant, conversation_id):
            workspace = self.workspaces.get(tenant, conversation_id)
            try:
                if isinstance(request, GetMcpPrompt):
                    return FileReply(prompt=await self.servers.prompt(request, workspace))
                found = await self.servers.list_tools(request.transport, workspace, request.hidden)
                return FileReply(tools=found.usable, refused_tools=found.refused, prompts=found.prompts)
            except ListingFailed as error:
                return FileReply(error=str(error), needs_sign_in=error.needs_sign_in)

    async def sign_in(self, request: DiscoverSignIn | RequestToken) -> FileReply:
        await import_sdk()
        from banksman.tool_runner.mcp.authorization import Authorizations, GrantRefused, SignInFailed

        authorizations = Authorizations(self.servers.egress)
        try:
            if isinstance(request, DiscoverSignIn):
                return FileReply(authorization=await authorizations.discover(request))
            return FileReply(token=await authorizations.token(request))
        except SignInFailed as error:
            return FileReply(error=str(error), refused=isinstance(error, GrantRefused))
