"""The bodies that configure servers of the Model Context Protocol, which HTTP and NATS share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.mcp import (
    Argument,
    HeaderName,
    HttpServer,
    McpServerId,
    McpTransport,
    SecretValue,
    StdioServer,
    VariableName,
)
from banksman.contracts.wire import Stored
from banksman.gateway.mcp_servers.configuration import McpServerChangeRequest, McpServerRequest
from banksman.gateway.operation.bodies import RequestBody

NewValue = Annotated[SecretValue, StringConstraints(max_length=8_000)]
"""A value, or one with references to secrets of the tenant: `Bearer ${secret.NAME}`."""

ServerUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^/@\s?#]+(/[^\s#@]*)?$", max_length=2_000)]


class Program(StdioServer):
    """A program in the sandbox."""

    env: dict[VariableName, NewValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Environment variables; their values are secrets."""


class RemoteServer(HttpServer):
    """A server at an address."""

    headers: dict[HeaderName, NewValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Headers of each request; their values are secrets."""

    url: ServerUrl
    """An address that the rules of `web_fetch` allow, without a user name or password."""


class ChangedProgram(Stored):
    """A program in the sandbox, some of whose values may be kept."""

    type: Literal["stdio"] = "stdio"
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64)]
    """The program and its arguments."""
    env: dict[VariableName, NewValue | None] = Field(default_factory=dict, max_length=32, repr=False)
    """All environment variables; null keeps the stored value of a variable, if the command is unchanged."""


class ChangedRemoteServer(Stored):
    """A server at an address, some of whose values may be kept."""

    type: Literal["http"] = "http"
    url: ServerUrl
    """An address that the rules of `web_fetch` allow, without a user name or password."""
    headers: dict[HeaderName, NewValue | None] = Field(default_factory=dict, max_length=32, repr=False)
    """All headers; null keeps the stored value of a header, if the address is unchanged."""


class McpServerFields(RequestBody):
    """How the tools of a server are treated."""

    description: str = Field(default="", max_length=200)
    trusted: bool = False
    """Whether tools that the server marks as read-only run without approval."""
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Maximum seconds of a call, including the start of the server."""


class McpServerBody(McpServerFields):
    """How to reach a server, and how its tools are treated."""

    transport: Annotated[Program | RemoteServer, Field(discriminator="type")]


class McpServerChange(McpServerFields):
    """The configuration that replaces the stored one."""

    transport: Annotated[ChangedProgram | ChangedRemoteServer, Field(discriminator="type")]
    revision: int | None = Field(default=None, ge=1)
    """The revision to replace; another stored revision is a conflict. None replaces any."""


class NewMcpServer(McpServerBody):
    """A server to configure."""

    id: McpServerId
    """Models see its tools as `{id}__{tool}`."""


def server_request(body: McpServerBody) -> McpServerRequest:
    """Return the server that a body configures."""
    return McpServerRequest(
        transport=_transport(body.transport),
        description=body.description,
        trusted=body.trusted,
        timeout_s=body.timeout_s,
    )


def change_request(body: McpServerChange) -> McpServerChangeRequest:
    """Return the change that a body requests: the given values, and the names of the values to keep."""
    values = body.transport.env if isinstance(body.transport, ChangedProgram) else body.transport.headers
    given = {name: value for name, value in values.items() if value is not None}
    transport = (
        StdioServer(command=body.transport.command, env=given)
        if isinstance(body.transport, ChangedProgram)
        else HttpServer(url=body.transport.url, headers=given)
    )
    return McpServerChangeRequest(
        transport=transport,
        description=body.description,
        trusted=body.trusted,
        timeout_s=body.timeout_s,
        kept=tuple(name for name in values if name not in given),
        revision=body.revision,
    )


def _transport(given: StdioServer | RemoteServer) -> McpTransport:
    return HttpServer(**dict(given)) if isinstance(given, RemoteServer) else given
