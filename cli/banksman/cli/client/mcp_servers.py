"""`banksman mcp`: servers of the Model Context Protocol."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from typing import Any

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.output import Exit, clean, prompt, typed
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token

PATH = "/context/mcp-servers"
Server = Mapping[str, Any]


def transport(command: list[str], at: str | None, values: list[str]) -> dict[str, Any]:
    """Return how a server is reached: at an address with headers, or by a program with variables.

    Values refer to secrets of the tenant, because other processes can read command-line arguments.

    Raises:
        BadInput: Neither a program nor an address is given, or both are; or a value refers to no secret.
    """
    if bool(command) == (at is not None):
        raise BadInput("--at", at, "either the address of a server, or a program after `--`")
    named = dict(_named_value(value) for value in values)
    if at is not None:
        return {"type": "http", "url": at, "headers": named}
    return {"type": "stdio", "command": command, "env": named}


def _named_value(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if "${secret." not in value:
        raise BadInput(
            "--secret", name, "NAME=VALUE with ${secret.SECRET} in VALUE: `banksman secrets set SECRET`"
        )
    return name, value


def list_servers(address: Address, *, as_json: bool = False) -> Exit:
    """List the servers. The exit code is a warning if one needs an administrator."""
    with Http.to(address) as http:
        servers = http.items(PATH)
    for server in servers:
        _print(server, as_json=as_json)
    if not servers and not as_json:
        output.print_line("no MCP servers")
    return Exit.WARNING if any(map(_needs, servers)) else Exit.OK


def add(address: Address, body: Mapping[str, Any], *, as_json: bool = False) -> Exit:
    """Configure a server. The exit code is a warning if an administrator must act, such as approve tools.

    Raises:
        GatewayRefused: The gateway refuses the configuration.
    """
    with Http.to(address) as http:
        return _shown(http.send("POST", PATH, body), as_json=as_json)


def show(address: Address, server_id: str, *, as_json: bool = False) -> Exit:
    """Show a server with its tools."""
    with Http.to(address) as http:
        return _shown(http.get(_path(server_id)), as_json=as_json)


def look(address: Address, server_id: str, *, as_json: bool = False) -> Exit:
    """List the tools of a server again."""
    with Http.to(address) as http:
        return _shown(http.send("POST", f"{_path(server_id)}/look"), as_json=as_json)


def approve(address: Address, server_id: str, *, confirmed: bool, as_json: bool = False) -> Exit:
    """Approve the new and changed tools of a server exactly as they are shown."""
    with Http.to(address) as http:
        server = http.get(_path(server_id))
        if not server["changes"]:
            output.print_result(server, f"{server_id}: nothing waits for approval", as_json=as_json)
            return Exit.OK
        if not confirmed:
            _shown(server, as_json=as_json)
            if prompt("approve? [y/n] ") not in ("y", "yes"):
                return Exit.WARNING
        body = {"digest": server["changes_digest"]}
        return _shown(http.send("POST", f"{_path(server_id)}/approve", body), as_json=as_json)


def sign_in(address: Address, server_id: str, body: Mapping[str, Any], *, as_json: bool = False) -> Exit:
    """Begin a sign-in, and finish it with the address that the user pastes. With `as_json`, only begin it."""
    given = {name: value for name, value in body.items() if value is not None}
    if "client_id" in given and (secret := _client_secret()):
        given["client_secret"] = secret
    with Http.to(address) as http:
        url = http.send("POST", f"{_path(server_id)}/sign-in", given)["url"]
    if as_json:
        output.print_json({"url": url})
        return Exit.OK
    output.print_line(f"Open this address in a browser, within ten minutes:\n\n{clean(url)}\n")
    if not (ended := typed("Address to which the browser was redirected: ")):
        output.print_error(f"finish it with: banksman mcp finish {server_id} ADDRESS")
        return Exit.WARNING
    return finish(address, server_id, ended)


def finish(address: Address, server_id: str, ended: str, *, as_json: bool = False) -> Exit:
    """Finish a sign-in with the address to which the browser was redirected.

    Raises:
        GatewayRefused: The sign-in has ended, or another user began it.
    """
    with Http.to(address) as http:
        return _shown(
            http.send("POST", f"{_path(server_id)}/sign-in/finish", {"url": ended}), as_json=as_json
        )


def sign_out(address: Address, server_id: str, *, as_json: bool = False) -> Exit:
    """Delete the tokens of a server."""
    with Http.to(address) as http:
        http.send("DELETE", f"{_path(server_id)}/sign-in")
    output.print_result({"id": server_id}, f"signed out at {server_id}", as_json=as_json)
    return Exit.OK


def remove(address: Address, server_id: str, *, as_json: bool = False) -> Exit:
    """Remove a server."""
    with Http.to(address) as http:
        http.send("DELETE", _path(server_id))
    output.print_result({"id": server_id}, f"removed {server_id}", as_json=as_json)
    return Exit.OK


def _client_secret() -> str:
    """Prompt for the secret of a client, because other processes can read command-line arguments."""
    if sys.stdin.isatty():
        return getpass.getpass("Secret of the client (empty for none): ")
    return sys.stdin.readline().rstrip("\r\n")


def _path(server_id: str) -> str:
    return f"{PATH}/{check_token(server_id, 'server')}"


def _shown(server: Server, *, as_json: bool) -> Exit:
    """Print a server with its tools; return a warning if it needs an administrator."""
    _print(server, as_json=as_json)
    if not as_json:
        for mark, tools in ((" ", server["tools"]), ("+", server["changes"])):
            for tool in tools:
                output.print_line(
                    clean(f"  {mark} {tool['name']}  {_first_line(tool['description'])}".rstrip())
                )
        for refused in server["refused"]:
            output.print_line(clean(f"  ! {refused['name']}: {refused['reason']}"))
    return Exit.WARNING if _needs(server) else Exit.OK


def _print(server: Server, *, as_json: bool) -> None:
    place = server["transport"]["url"] or " ".join(server["transport"]["command"] or ())
    output.print_result(server, clean(f"{server['id']:<24} {_state(server)}  {place}"), as_json=as_json)


def _state(server: Server) -> str:
    if server["needs_sign_in"]:
        return f"needs a sign-in: banksman mcp sign-in {server['id']}"
    if server["problem"]:
        return f"problem: {server['problem']}"
    if server["changes"]:
        return f"new or changed tools: {len(server['changes'])}, banksman mcp approve {server['id']}"
    signed_in = f", signed in as {server['signed_in']['user']}" if server["signed_in"] else ""
    return f"tools: {len(server['tools'])}{signed_in}"


def _needs(server: Server) -> bool:
    return bool(server["needs_sign_in"] or server["problem"] or server["changes"])


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:100]
