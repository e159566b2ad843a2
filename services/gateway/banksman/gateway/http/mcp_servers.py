"""Servers of the Model Context Protocol: configure them, list their tools, approve the tools."""

from __future__ import annotations

from banksman.gateway.mcp_servers.bodies import (
    Approval,
    McpServerDescription,
    described,
)
from banksman.gateway.mcp_servers.server_bodies import (
    McpServerChange,
    NewMcpServer,
    change_request,
    server_request,
)
from banksman.gateway.mcp_servers.servers import LookedAt
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.routing import StrictBody, router

routes = router("mcp-servers")


@routes.get("/context/mcp-servers")
async def list_mcp_servers(gateway: ServiceDep, caller: AdminDep) -> Listing[McpServerDescription]:
    """List the tenant's servers."""
    found = await gateway.mcp_servers.list(caller.tenant)
    return Listing[McpServerDescription](items=tuple(described(LookedAt(server)) for server in found))


@routes.post("/context/mcp-servers", status_code=201)
async def create_mcp_server(
    body: StrictBody[NewMcpServer], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Configure a server and list its tools. Models are offered the tools after approval."""
    created = await gateway.mcp_servers.create(caller.tenant, caller.user, body.id, server_request(body))
    return described(created)


@routes.get("/context/mcp-servers/{server_id}")
async def read_mcp_server(server_id: str, gateway: ServiceDep, caller: AdminDep) -> McpServerDescription:
    """Read a server, with its tools as last listed."""
    return described(LookedAt(await gateway.mcp_servers.get(caller.tenant, server_id)))


@routes.put("/context/mcp-servers/{server_id}")
async def replace_mcp_server(
    server_id: str, body: StrictBody[McpServerChange], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Replace the configuration of a server. A different address or program withdraws its approvals.

    A secret that is null keeps its stored value; a secret that is omitted is removed.
    """
    return described(await gateway.mcp_servers.replace(caller.tenant, server_id, change_request(body)))


@routes.delete("/context/mcp-servers/{server_id}", status_code=204)
async def delete_mcp_server(server_id: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Delete a server. Models are no longer offered its tools."""
    await gateway.mcp_servers.delete(caller.tenant, server_id)


@routes.post("/context/mcp-servers/{server_id}/look")
async def look_at_mcp_server(server_id: str, gateway: ServiceDep, caller: AdminDep) -> McpServerDescription:
    """List the tools of a server again. Changed ones are withdrawn until they are approved."""
    return described(await gateway.mcp_servers.look(caller.tenant, server_id))


@routes.post("/context/mcp-servers/{server_id}/approve")
async def approve_mcp_server(
    server_id: str, body: StrictBody[Approval], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Approve the changes of a server: models are offered its tools as they are now."""
    return described(await gateway.mcp_servers.approve(caller.tenant, server_id, body.digest))
