"""The configuration of a server of the Model Context Protocol, and its replacement."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.errors import NULL, BadInput, Conflict
from banksman.contracts.mcp import HttpServer, McpServer, McpTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerRequest:
    """A server to configure."""

    transport: McpTransport
    description: str
    trusted: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerChangeRequest(McpServerRequest):
    """A configuration that replaces the stored one."""

    kept: tuple[str, ...]
    """Names of headers or variables that keep their stored values."""
    revision: int | None
    """The revision that it replaces; None for any."""


def replaced(server: McpServer, asked: McpServerChangeRequest, given: McpTransport) -> McpServer:
    """Return the next revision of a server. A different address or program removes its approvals and sign-in.

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
    transport = _with_kept(given, server.transport, asked.kept)
    same = place_of(server.transport) == place_of(transport)
    approved = {"tools": server.tools, "replaced": server.replaced} if same else _NONE_APPROVED
    # A token is for one address: another server must never receive it.
    access = {} if same else {"signed_in": None, "pending": None}
    return server.model_copy(
        update={
            **{name: getattr(asked, name) for name in _ASKED},
            **approved,
            **access,
            "changes": (),
            "transport": transport,
            "needs_sign_in": False,
            "revision": server.revision + 1,
        }
    )


_ASKED = ("description", "trusted", "timeout_s")
_NONE_APPROVED = {"tools": (), "replaced": ()}


def _with_kept(given: McpTransport, stored: McpTransport, kept: tuple[str, ...]) -> McpTransport:
    """Return a transport with the stored values of `kept`, which only the same address or program may get.

    Raises:
        BadInput: The address or the program changes, or a value is not stored.
    """
    field, place = ("headers", "address") if isinstance(given, HttpServer) else ("env", "program")
    for name in kept:
        # Otherwise an administrator could read a secret, which no API returns, by sending it to their own
        # address.
        if place_of(given) != place_of(stored):
            raise BadInput(f"transport.{field}.{name}", NULL, f"its value again, because the {place} changes")
        if name not in stored.values:
            raise BadInput(f"transport.{field}.{name}", NULL, "a value; the server has none of this name")
    return given.with_values({**given.values, **{name: stored.values[name] for name in kept}})


def place_of(transport: McpTransport) -> object:
    """Return the address or the command of a server, without its secrets."""
    return transport.url if isinstance(transport, HttpServer) else transport.command
