"""Servers of the Model Context Protocol: configure them, list their tools, approve the tools."""

from __future__ import annotations

from typing import Annotated

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.mcp_servers.bodies import Approval, McpServerDescription, described
from banksman.gateway.mcp_servers.configuration import McpServerChange, NewMcpServer
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.mcp_servers.sign_in_operations import operations as sign_ins
from banksman.gateway.mcp_servers.sign_ins import McpSignIns
from banksman.gateway.operation.caller import ADMIN
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, StrictBody, provided
from banksman.runs.runners.placement import Placements

Servers = Annotated[ConfiguredServers, provided(ConfiguredServers)]
DETAILS = ("name",)

operations = Operations("mcp-servers", right=ADMIN)


@operations.add("mcp.list", "GET /context/mcp-servers")
async def list_mcp_servers(servers: Servers, caller: CallerDep) -> Listing[McpServerDescription]:
    """List the tenant's servers."""
    found = await servers.list(caller)
    return Listing[McpServerDescription](items=tuple(described(LookedAt(server)) for server in found))


@operations.add(
    "mcp.create",
    "POST /context/mcp-servers",
    status=201,
    errors=(CONFLICT,),
    audit=Audit("mcp_server.created", DETAILS),
    confidential=True,
)
async def create_mcp_server(
    body: StrictBody[NewMcpServer], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Configure a server and list its tools. Models are offered the tools after approval."""
    return described(await servers.create(caller, body))


@operations.add("mcp.read", "GET /context/mcp-servers/{server_id}", errors=(MISSING,))
async def read_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> McpServerDescription:
    """Read a server, with its tools as last listed."""
    return described(LookedAt(await servers.get(caller, server_id)))


@operations.add(
    "mcp.update",
    "PUT /context/mcp-servers/{server_id}",
    errors=(MISSING, CONFLICT),
    audit=Audit("mcp_server.changed", DETAILS),
    confidential=True,
)
async def replace_mcp_server(
    server_id: str, body: StrictBody[McpServerChange], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Replace the configuration of a server. A different address or program withdraws its approvals.

    A secret that is null keeps its stored value; a secret that is omitted is removed.
    """
    return described(await servers.replace(caller, server_id, body))


@operations.add(
    "mcp.delete",
    "DELETE /context/mcp-servers/{server_id}",
    status=204,
    errors=(MISSING,),
    audit=Audit("mcp_server.deleted"),
)
async def delete_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> None:
    """Delete a server. Models are no longer offered its tools."""
    await servers.delete(caller, server_id)


@operations.add("mcp.look", "POST /context/mcp-servers/{server_id}/look", errors=(MISSING,))
async def look_at_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> McpServerDescription:
    """List the tools of a server again. Changed ones are withdrawn until they are approved."""
    return described(await servers.look(caller, server_id))


@operations.add(
    "mcp.approve",
    "POST /context/mcp-servers/{server_id}/approve",
    errors=(MISSING, CONFLICT),
    audit=Audit("mcp_server.approved", DETAILS),
)
async def approve_mcp_server(
    server_id: str, body: StrictBody[Approval], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Approve the changes of a server: models are offered its tools as they are now."""
    return described(await servers.approve(caller, server_id, body.digest))


async def build(base: Foundation) -> None:
    servers = ConfiguredServers(base.bus, base.services[Placements], base.clock, base.box)
    base.services.add(servers, McpSignIns(servers, base.clock))


FEATURE = Feature((*operations, *sign_ins), build)
