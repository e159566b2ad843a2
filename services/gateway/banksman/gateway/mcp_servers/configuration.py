"""The configuration of a server of the Model Context Protocol as clients send it, and its replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from banksman.bus.mcp_access import Changes
from banksman.contracts import mcp
from banksman.contracts.errors import NULL, BadInput, Conflict
from banksman.contracts.urls import checked_url
from banksman.contracts.wire import Stored
from banksman.gateway.operation.parameters import RequestBody

NewValue = Annotated[mcp.SecretValue, StringConstraints(max_length=8_000)]
"""A value, or one with references to secrets of the tenant: `Bearer ${secret.NAME}`."""

ServerUrl = Annotated[
    str,
    StringConstraints(pattern=r"^https?://[^/@\s?#]+(/[^\s#@]*)?$", max_length=2_000),
    AfterValidator(checked_url),
]


class Program(mcp.StdioServer):
    """A program in the sandbox."""

    env: dict[mcp.VariableName, NewValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Environment variables; their values are secrets."""


class RemoteServer(mcp.HttpServer):
    """A server at an address."""

    headers: dict[mcp.HeaderName, NewValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Headers of each request; their values are secrets."""

    url: ServerUrl
    """An address that the rules of `web_fetch` allow, without a user name or password."""


class ChangedProgram(Stored):
    """A program in the sandbox, some of whose values may be kept."""

    type: Literal["stdio"] = "stdio"
    command: Annotated[tuple[mcp.Argument, ...], Field(min_length=1, max_length=64)]
    """The program and its arguments."""
    env: dict[mcp.VariableName, NewValue | None] = Field(default_factory=dict, max_length=32, repr=False)
    """All environment variables; null keeps the stored value of a variable, if the command is unchanged."""


class ChangedRemoteServer(Stored):
    """A server at an address, some of whose values may be kept."""

    type: Literal["http"] = "http"
    url: ServerUrl
    """An address that the rules of `web_fetch` allow, without a user name or password."""
    headers: dict[mcp.HeaderName, NewValue | None] = Field(default_factory=dict, max_length=32, repr=False)
    """All headers; null keeps the stored value of a header, if the address is unchanged."""


class McpServerFields(RequestBody):
    """How the tools of a server are treated."""

    description: str = Field(default="", max_length=200)
    trusted: bool = False
    """Whether tools that the server marks as read-only run without approval."""
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Maximum seconds of a call, including the start of the server."""
    sign_in: mcp.SignInBy = "tenant"
    """Whose access calls use: that of an administrator for all, or that of the user for whom a run acts."""

    @property
    def treatment(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in McpServerFields.model_fields}


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

    id: mcp.McpServerId
    """Models see its tools as `{id}__{tool}`."""


NO_ACCESS = {"signed_in": None, "pending": None, "client": None}
GivenTransport = Program | RemoteServer | ChangedProgram | ChangedRemoteServer


def given_transport(body: McpServerBody | McpServerChange) -> mcp.McpTransport:
    """Return the transport of a body with the values that a client gives, without those to keep."""
    asked = body.transport
    if body.sign_in == "user" and isinstance(asked, Program | ChangedProgram):
        raise BadInput("sign_in", body.sign_in, "tenant, because a program has no sign-in")
    values = {name: value for name, value in _values(asked).items() if value is not None}
    if isinstance(asked, Program | ChangedProgram):
        return mcp.StdioServer(command=asked.command, env=values)
    return mcp.HttpServer(url=asked.url, headers=values)


def _values(asked: GivenTransport) -> Mapping[str, str | None]:
    return asked.env if isinstance(asked, Program | ChangedProgram) else asked.headers


def replaced(server: mcp.McpServer, asked: McpServerChange, given: mcp.McpTransport) -> Changes:
    """Return the changes of the next revision. Another address or program removes approvals and sign-ins.

    Args:
        server: The server as it is stored.
        asked: The change.
        given: The transport of the change, with its values encrypted.

    Raises:
        Conflict: The stored configuration has another revision than the one named.
        BadInput: A value to keep is not stored, or is for another address or program.
    """
    if asked.revision not in (None, server.revision):
        found = f"server {server.id!r} is at revision {server.revision}, not {asked.revision}"
        raise Conflict(f"{found}: read it again")
    transport = _with_kept(given, server.transport, asked.transport)
    same = mcp.place_of(server.transport) == mcp.place_of(transport)
    listed = {} if same else {"tools": (), "replaced": (), "prompts": ()}
    # A token is for one address: another server must never receive it.
    access = {} if same and server.sign_in == asked.sign_in else NO_ACCESS
    return {
        **asked.treatment,
        **listed,
        **access,
        "changes": (),
        "transport": transport,
        "needs_sign_in": False,
        "revision": server.revision + 1,
    }


def _with_kept(given: mcp.McpTransport, stored: mcp.McpTransport, asked: GivenTransport) -> mcp.McpTransport:
    """Return a transport with the stored values to keep, which only the same address or program may get."""
    kept = [name for name, value in _values(asked).items() if value is None]
    field, place = ("headers", "address") if isinstance(given, mcp.HttpServer) else ("env", "program")
    for name in kept:
        # Otherwise an administrator could read a secret, which no API returns, by sending it to their own
        # address.
        if mcp.place_of(given) != mcp.place_of(stored):
            raise BadInput(f"transport.{field}.{name}", NULL, f"its value again, because the {place} changes")
        if name not in stored.values:
            raise BadInput(f"transport.{field}.{name}", NULL, "a value; the server has none of this name")
    return given.with_values({**given.values, **{name: stored.values[name] for name in kept}})
