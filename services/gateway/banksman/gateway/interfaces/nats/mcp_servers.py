"""Servers of the Model Context Protocol, and the sign-in at those that require OAuth."""

from __future__ import annotations

from banksman.bus.control import Received
from banksman.contracts.errors import ErrorCode
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints, Deleted, caller_of, named_by, tenant_of
from banksman.gateway.interfaces.nats.messages import BeginMcpSignIn
from banksman.gateway.mcp_servers.bodies import (
    Approval,
    McpServerDescription,
    McpSignInReturned,
    McpSignInStarted,
    described,
)
from banksman.gateway.mcp_servers.server_bodies import (
    McpServerChange,
    NewMcpServer,
    change_request,
    server_request,
)
from banksman.gateway.mcp_servers.servers import LookedAt
from banksman.gateway.mcp_servers.sign_ins import CALLBACK
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.gateway import Gateway

MISSING, CONFLICT = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT


def add_mcp_servers(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve MCP servers. No subject returns a secret or a token."""

    @api.serve("mcp", "list")
    async def list_mcp_servers(message: Received) -> Listing[McpServerDescription]:
        """List the MCP servers."""
        found = await gateway.mcp_servers.list(tenant_of(message))
        return Listing[McpServerDescription](items=tuple(described(LookedAt(server)) for server in found))

    @api.serve("mcp", "create", errors=(CONFLICT,))
    async def create_mcp_server(request: NewMcpServer, message: Received) -> McpServerDescription:
        """Configure an MCP server and list its tools, which wait for approval."""
        caller = caller_of(message)
        return described(
            await gateway.mcp_servers.create(caller.tenant, caller.user, request.id, server_request(request))
        )

    @api.serve("mcp", "read", "{server}", errors=(MISSING,))
    async def read_mcp_server(message: Received) -> McpServerDescription:
        """Read an MCP server, with its tools as last listed."""
        return described(LookedAt(await gateway.mcp_servers.get(tenant_of(message), named_by(message))))

    @api.serve("mcp", "update", "{server}", errors=(MISSING, CONFLICT))
    async def replace_mcp_server(request: McpServerChange, message: Received) -> McpServerDescription:
        """Replace the configuration of an MCP server. A secret that is null keeps its stored value."""
        server = change_request(request)
        return described(await gateway.mcp_servers.replace(tenant_of(message), named_by(message), server))

    @api.serve("mcp", "delete", "{server}", errors=(MISSING,))
    async def delete_mcp_server(message: Received) -> Deleted:
        """Delete an MCP server. Models are no longer offered its tools."""
        await gateway.mcp_servers.delete(tenant_of(message), named_by(message))
        return Deleted(id=named_by(message))

    @api.serve("mcp", "look", "{server}", errors=(MISSING,))
    async def look_at_mcp_server(message: Received) -> McpServerDescription:
        """List the tools of an MCP server again. Changed ones are withdrawn until they are approved."""
        return described(await gateway.mcp_servers.look(tenant_of(message), named_by(message)))

    @api.serve("mcp", "approve", "{server}", errors=(MISSING, CONFLICT))
    async def approve_mcp_server(request: Approval, message: Received) -> McpServerDescription:
        """Approve the changes of an MCP server: models are offered its tools as they are now."""
        server_id = named_by(message)
        return described(await gateway.mcp_servers.approve(tenant_of(message), server_id, request.digest))

    @api.serve("mcp", "sign_in", "{server}", errors=(MISSING, CONFLICT))
    async def begin_mcp_sign_in(request: BeginMcpSignIn, message: Received) -> McpSignInStarted:
        """Begin a sign-in at an MCP server. The access that the user grants there is for the whole tenant."""
        caller, callback = caller_of(message), f"{request.gateway_url.rstrip('/')}{CALLBACK}"
        begun = await gateway.mcp_sign_ins.begin(
            caller.tenant, caller.user, named_by(message), callback, request.client
        )
        return McpSignInStarted(url=begun.url)

    @api.serve("mcp", "finish", "{server}", errors=(MISSING, CONFLICT))
    async def finish_mcp_sign_in(request: McpSignInReturned, message: Received) -> McpServerDescription:
        """Finish a sign-in that was begun over NATS, and list the tools of the server."""
        caller = caller_of(message)
        return described(
            await gateway.mcp_sign_ins.finish_for(caller.tenant, caller.user, named_by(message), request.url)
        )

    @api.serve("mcp", "sign_out", "{server}", errors=(MISSING,))
    async def delete_mcp_sign_in(message: Received) -> Deleted:
        """Delete the tokens of an MCP server. Its tools cannot be called before the next sign-in."""
        await gateway.mcp_sign_ins.forget(tenant_of(message), named_by(message))
        return Deleted(id=named_by(message))
