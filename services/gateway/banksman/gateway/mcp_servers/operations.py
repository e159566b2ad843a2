"""Servers of the Model Context Protocol: configure them, approve their tools, sign in at them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request, Response

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.mcp_servers.bodies import (
    Approval,
    GatewayUrl,
    McpClientBody,
    McpServerDescription,
    McpSignInBody,
    McpSignInReturned,
    McpSignInStarted,
    described_to,
)
from banksman.gateway.mcp_servers.configuration import McpServerChange, NewMcpServer
from banksman.gateway.mcp_servers.own_sign_ins import operations as own_operations
from banksman.gateway.mcp_servers.prompts import operations as prompt_operations
from banksman.gateway.mcp_servers.returning import (
    MCP_SIGNED_IN,
    TO_PAGE,
    SignIns,
    base_of,
    set_cookie,
)
from banksman.gateway.mcp_servers.returning import operations as callback_operations
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.mcp_servers.sign_ins import CALLBACK, McpSignIns
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
    found = [LookedAt(server) for server in await servers.list(caller)]
    items = [await described_to(caller, servers, looked_at) for looked_at in found]
    return Listing[McpServerDescription](items=tuple(items))


@operations.add(
    "mcp.create",
    "POST /context/mcp-servers",
    errors=(CONFLICT,),
    audit=Audit("mcp_server.created", DETAILS),
    confidential=True,
)
async def create_mcp_server(
    body: StrictBody[NewMcpServer], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Configure a server and list its tools. Models are offered the tools after approval."""
    return await described_to(caller, servers, await servers.create(caller, body))


@operations.add("mcp.read", "GET /context/mcp-servers/{server_id}")
async def read_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> McpServerDescription:
    """Read a server, with its tools as last listed."""
    return await described_to(caller, servers, LookedAt(await servers.get(caller, server_id)))


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
    return await described_to(caller, servers, await servers.replace(caller, server_id, body))


@operations.add("mcp.delete", "DELETE /context/mcp-servers/{server_id}", audit=Audit("mcp_server.deleted"))
async def delete_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> None:
    """Delete a server. Models are no longer offered its tools."""
    await servers.delete(caller, server_id)


@operations.add("mcp.look", "POST /context/mcp-servers/{server_id}/look")
async def look_at_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> McpServerDescription:
    """List the tools of a server again. Changed ones are withdrawn until they are approved."""
    return await described_to(caller, servers, await servers.look(caller, server_id))


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
    return await described_to(caller, servers, await servers.approve(caller, server_id, body.digest))


@operations.add(
    "mcp.sign_in",
    "POST /context/mcp-servers/{server_id}/sign-in",
    not_over_nats="declared below, without the cookie of a browser",
)
async def begin_mcp_sign_in(
    server_id: str,
    body: StrictBody[McpSignInBody],
    request: Request,
    response: Response,
    sign_ins: SignIns,
    caller: CallerDep,
) -> McpSignInStarted:
    """Begin a sign-in at a server. The access that the user grants there is for the whole tenant.

    If each user signs in (`sign_in` of the server), it is for the caller, and to list the tools.

    A browser that sends this request gets a cookie, with which it finishes the sign-in when it returns.
    Other clients send the address to which the browser was redirected to `…/sign-in/finish`.
    """
    base = base_of(body.gateway_url, request)
    begun = await sign_ins.begin(caller, server_id, f"{base}{CALLBACK}", body.client)
    set_cookie(response, begun, base, TO_PAGE if body.to_page else "")
    return McpSignInStarted(url=begun.url)


class BeginMcpSignIn(McpClientBody):
    """How to sign in at an MCP server."""

    gateway_url: GatewayUrl
    """The address of the gateway as browsers reach it."""


@operations.over_nats(
    "mcp.sign_in",
    "server_id",
    right=ADMIN,
    errors=(MISSING, CONFLICT),
    not_over_http="declared above, with a cookie for browsers",
    confidential=True,
)
async def begin_mcp_sign_in_over_nats(
    server_id: str, request: BeginMcpSignIn, sign_ins: SignIns, caller: CallerDep
) -> McpSignInStarted:
    """Begin a sign-in at an MCP server. The access that the user grants there is for the whole tenant."""
    callback = f"{request.gateway_url.rstrip('/')}{CALLBACK}"
    begun = await sign_ins.begin(caller, server_id, callback, request.client)
    return McpSignInStarted(url=begun.url)


@operations.add(
    "mcp.finish",
    "POST /context/mcp-servers/{server_id}/sign-in/finish",
    errors=(MISSING, CONFLICT),
    audit=MCP_SIGNED_IN,
    confidential=True,
)
async def finish_mcp_sign_in_for_user(
    server_id: str, body: StrictBody[McpSignInReturned], sign_ins: SignIns, caller: CallerDep
) -> McpServerDescription:
    """Finish a sign-in that the same user began without a browser, and list the tools of the server."""
    looked_at = await sign_ins.finish_for(caller, server_id, body.url)
    return await described_to(caller, sign_ins.servers, looked_at)


@operations.add(
    "mcp.sign_out", "DELETE /context/mcp-servers/{server_id}/sign-in", audit=Audit("mcp_server.signed_out")
)
async def delete_mcp_sign_in(server_id: str, sign_ins: SignIns, caller: CallerDep) -> None:
    """Delete the tokens of a server. Its tools cannot be called before an administrator signs in again.

    If each user signs in, it deletes the caller's tokens, and the client with which users sign in.
    """
    await sign_ins.forget(caller, server_id)


async def build(base: Foundation) -> None:
    servers = ConfiguredServers(base.bus, base.services[Placements], base.clock, base.box)
    base.services.add(servers, McpSignIns(servers, base.clock))


FEATURE = Feature((*operations, *callback_operations, *own_operations, *prompt_operations), build)
