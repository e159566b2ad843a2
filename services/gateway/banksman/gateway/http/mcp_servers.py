"""Servers of the Model Context Protocol: configure, look at their tools, approve them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Response
from pydantic import Field, StringConstraints

from banksman.contracts.mcp import (
    HeaderName,
    HttpServer,
    McpServer,
    McpServerId,
    McpTransport,
    RefusedTool,
    SecretValue,
    ServedTool,
    StdioServer,
    VariableName,
    definition_of,
)
from banksman.contracts.wire import JsonObject, Stored, Timestamp
from banksman.gateway.asgi.dependencies import AdminDep, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.service.bodies import Listing, RequestBody
from banksman.gateway.service.mcp_servers import LookedAt, McpServerRequest

routes = router("mcp-servers")


NewValue = Annotated[SecretValue, StringConstraints(max_length=8_000)]
"""A value, or one with references to secrets of the tenant: `Bearer ${secret.NAME}`."""


class Program(StdioServer):
    """A program in the sandbox."""

    env: dict[VariableName, NewValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Environment variables; their values are secrets."""


class RemoteServer(HttpServer):
    """A server at an address."""

    headers: dict[HeaderName, NewValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Headers of each request; their values are secrets."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^/@\s?#]+(/[^\s#@]*)?$", max_length=2_000)]
    """An address that the rules of `web_fetch` allow, without a user name or password."""


class McpServerBody(RequestBody):
    """How to reach a server, and how its tools are treated."""

    transport: Annotated[Program | RemoteServer, Field(discriminator="type")]
    description: str = Field(default="", max_length=200)
    trusted: bool = False
    """Whether tools that the server calls read-only run without approval."""
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Seconds of a call, with the start of the server."""


class NewMcpServer(McpServerBody):
    """A server to configure."""

    id: McpServerId
    """Models see its tools as `{id}__{tool}`."""


class Approval(RequestBody):
    """Approves the changes of a server as they were shown."""

    digest: str = Field(max_length=64)
    """`changes_digest` of the server."""


class TransportDescription(Stored):
    """How a server is reached, without its secrets."""

    type: Literal["stdio", "http"]
    command: tuple[str, ...] | None = None
    url: str | None = None
    secrets: tuple[str, ...]
    """Names of its environment variables or headers."""


class McpToolDescription(Stored):
    """A tool of a server."""

    name: str
    """The name for models."""
    tool: str
    """The server's own name for it."""
    description: str
    input_schema: JsonObject
    requires_approval: bool
    """Whether each call needs a user's approval, unless an assistant's policy decides."""


class McpSignedIn(Stored):
    """The access that a user gave by signing in, without its tokens."""

    user: str
    at: Timestamp
    expires_at: Timestamp | None
    """When its token expires; it is renewed before a call if the server allows that."""


class McpServerDescription(Stored):
    """A server without its secrets."""

    id: str
    transport: TransportDescription
    description: str
    trusted: bool
    timeout_s: float
    tools: tuple[McpToolDescription, ...]
    """The approved tools."""
    changes: tuple[McpToolDescription, ...]
    """New and changed tools, which are not offered before they are approved."""
    changes_digest: str | None
    """Approves exactly these changes."""
    found_at: Timestamp | None
    """When its tools were listed last."""
    created_at: Timestamp
    created_by: str
    problem: str | None = None
    """Why its tools could not be listed now."""
    refused: tuple[RefusedTool, ...] = ()
    """Approved tools that cannot be offered, and why."""
    needs_sign_in: bool = False
    """Whether it responded with 401, or its access has ended: `POST …/sign-in` begins a sign-in."""
    signed_in: McpSignedIn | None = None
    """The access that a user gave; null without one."""


@routes.get("/context/mcp-servers")
async def list_mcp_servers(gateway: ServiceDep, caller: AdminDep) -> Listing[McpServerDescription]:
    """List the tenant's servers."""
    found = await gateway.mcp_servers.list(caller.tenant)
    return Listing[McpServerDescription](items=tuple(_described(LookedAt(server)) for server in found))


@routes.post("/context/mcp-servers", status_code=201)
async def create_mcp_server(
    body: StrictBody[NewMcpServer], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Configure a server and list its tools. Approve them, so that models are offered them."""
    created = await gateway.mcp_servers.create(caller.tenant, caller.user, body.id, _asked(body))
    return _described(created)


@routes.get("/context/mcp-servers/{server_id}")
async def read_mcp_server(server_id: str, gateway: ServiceDep, caller: AdminDep) -> McpServerDescription:
    """Read a server, with its tools as they were listed last."""
    return _described(LookedAt(await gateway.mcp_servers.get(caller.tenant, server_id)))


@routes.put("/context/mcp-servers/{server_id}")
async def replace_mcp_server(
    server_id: str, body: StrictBody[McpServerBody], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Replace a server, with all of its secrets. With another address or program its approvals end."""
    return _described(await gateway.mcp_servers.replace(caller.tenant, server_id, _asked(body)))


@routes.delete("/context/mcp-servers/{server_id}", status_code=204, response_class=Response)
async def delete_mcp_server(server_id: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Delete a server. Models are no longer offered its tools."""
    await gateway.mcp_servers.delete(caller.tenant, server_id)


@routes.post("/context/mcp-servers/{server_id}/look")
async def look_at_mcp_server(server_id: str, gateway: ServiceDep, caller: AdminDep) -> McpServerDescription:
    """List the tools of a server again. Changed ones are withdrawn until they are approved."""
    return _described(await gateway.mcp_servers.look(caller.tenant, server_id))


@routes.post("/context/mcp-servers/{server_id}/approve")
async def approve_mcp_server(
    server_id: str, body: StrictBody[Approval], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Approve the changes of a server: models are offered its tools as they are now."""
    return _described(await gateway.mcp_servers.approve(caller.tenant, server_id, body.digest))


def _asked(body: McpServerBody) -> McpServerRequest:
    return McpServerRequest(
        transport=_transport(body.transport),
        description=body.description,
        trusted=body.trusted,
        timeout_s=body.timeout_s,
    )


def _transport(given: StdioServer | RemoteServer) -> McpTransport:
    return HttpServer(**dict(given)) if isinstance(given, RemoteServer) else given


def _described(looked_at: LookedAt) -> McpServerDescription:
    server, signed_in = looked_at.server, looked_at.server.signed_in
    return McpServerDescription(
        id=server.id,
        transport=_described_transport(server.transport),
        description=server.description,
        trusted=server.trusted,
        timeout_s=server.timeout_s,
        tools=tuple(_described_tool(server, tool) for tool in server.tools),
        changes=tuple(_described_tool(server, tool) for tool in server.changes),
        changes_digest=looked_at.changes_digest,
        found_at=server.found_at,
        created_at=server.created_at,
        created_by=server.created_by,
        problem=looked_at.problem,
        refused=looked_at.refused,
        needs_sign_in=server.needs_sign_in,
        signed_in=signed_in
        and McpSignedIn(user=signed_in.user, at=signed_in.at, expires_at=signed_in.expires_at),
    )


def _described_transport(transport: McpTransport) -> TransportDescription:
    match transport:
        case StdioServer():
            return TransportDescription(type="stdio", command=transport.command, secrets=tuple(transport.env))
        case HttpServer():
            return TransportDescription(type="http", url=transport.url, secrets=tuple(transport.headers))


def _described_tool(server: McpServer, tool: ServedTool) -> McpToolDescription:
    definition = definition_of(server, tool)
    return McpToolDescription(
        name=definition.name,
        tool=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        requires_approval=definition.requires_approval,
    )
