"""`banksman mcp`: servers of the Model Context Protocol."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from banksman.cli import output
from banksman.cli.client.options import Url, gateway
from banksman.cli.options import Json, group
from banksman.cli.output import Exit, exit_with, prompt, typed
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token

app = group("Connect MCP servers, whose tools models may call.")

Id = Annotated[str, typer.Argument(help="Id of an MCP server.")]
Own = Annotated[bool, typer.Option("--own", help="For your own runs, at a server where each user signs in.")]
McpServer = Mapping[str, Any]


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List the servers; exit code 1 if one needs an administrator."""
    with gateway(url) as api:
        servers = api.items("mcp.list")
    output.print_items(servers, _line, none="no MCP servers", as_json=json)
    exit_with(Exit.WARNING if any(map(_needs, servers)) else Exit.OK)


@app.command()
def add(
    server: Annotated[str, typer.Argument(help="Id of the server; models see its tools as ID__TOOL.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="A program in the sandbox and its arguments, after `--`.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Address of a server over HTTP, instead of a program.")
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="Header or variable: 'NAME=Bearer ${secret.TOKEN}'; repeatable.")
    ] = None,
    description: Annotated[str, typer.Option(help="Description of the server.")] = "",
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Run tools that the server marks as read-only without approval.")
    ] = False,
    each_user: Annotated[
        bool,
        typer.Option("--each-user", help="Each user signs in, and calls use the access of the run's user."),
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Configure a server and list its tools, which wait for `approve`."""
    transport = _transport(command or [], at, secret or [])
    body = {"id": server, "transport": transport, "description": description, "trusted": trusted}
    if each_user:
        body["sign_in"] = "user"
    _call_and_show("create", url, json=json, body=body)


@app.command()
def show(server: Id, url: Url = None, json: Json = False) -> None:
    """Show a server with its tools, approved and waiting for approval."""
    _call_and_show("read", url, server, json=json)


@app.command()
def look(server: Id, url: Url = None, json: Json = False) -> None:
    """List the tools again; withdraw changed ones until approved."""
    _call_and_show("look", url, server, json=json)


@app.command()
def approve(
    server: Id,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show new and changed tools; offer them to models once confirmed."""
    with gateway(url) as api:
        found = api.call("mcp.read", _checked(server))
        if not found["changes"]:
            output.print_result(found, f"{server}: nothing waits for approval", as_json=json)
            return
        if not yes:
            _show(found, as_json=json)
            if prompt("approve? [y/n] ") not in ("y", "yes"):
                exit_with(Exit.WARNING)
        # The digest limits the approval to the tools that were shown.
        approved = api.call("mcp.approve", server, body={"digest": found["changes_digest"]})
    exit_with(_show(approved, as_json=json))


@app.command("sign-in")
def sign_in(
    server: Id,
    gateway_url: Annotated[
        str | None, typer.Option(help="URL of the gateway for the browser (default: the value of --url).")
    ] = None,
    client_id: Annotated[
        str | None, typer.Option(help="Id of a registered OAuth client; the command prompts for its secret.")
    ] = None,
    own: Own = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Sign in at a server that requires OAuth, for the whole tenant."""
    given = {"gateway_url": gateway_url, "client_id": client_id}
    body = {name: value for name, value in given.items() if value is not None}
    if client_id is not None and (secret := _client_secret()):
        body["client_secret"] = secret
    with gateway(url) as api:
        page = api.call(f"{_sign_ins(own)}.sign_in", _checked(server), body=body)["url"]
    if json:
        output.print_json({"url": page})
        return
    output.print_text(f"Open this address in a browser, within ten minutes:\n\n{page}\n")
    if not (ended := typed("Address to which the browser was redirected: ")):
        output.print_error(f"finish it with: banksman mcp finish {server} ADDRESS{' --own' if own else ''}")
        exit_with(Exit.WARNING)
    _finish(server, ended, url, own=own, json=False)


@app.command()
def finish(
    server: Id,
    address: Annotated[str, typer.Argument(help="Address to which the browser was redirected.")],
    own: Own = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Finish a sign-in that was begun by `sign-in`."""
    _finish(server, address, url, own=own, json=json)


@app.command("sign-out")
def sign_out(server: Id, own: Own = False, url: Url = None, json: Json = False) -> None:
    """Delete the tokens; tools then need a new sign-in."""
    with gateway(url) as api:
        api.call(f"{_sign_ins(own)}.sign_out", _checked(server))
    output.print_result({"id": server}, f"signed out at {server}", as_json=json)


@app.command()
def rm(server: Id, url: Url = None, json: Json = False) -> None:
    """Remove a server: models are no longer offered its tools."""
    with gateway(url) as api:
        api.call("mcp.delete", _checked(server))
    output.print_result({"id": server}, f"removed {server}", as_json=json)


def _call_and_show(
    action: str, url: str | None, *servers: str, json: bool, body: Mapping[str, Any] | None = None
) -> None:
    with gateway(url) as api:
        found = api.call(f"mcp.{action}", *map(_checked, servers), body=body)
    exit_with(_show(found, as_json=json))


def _sign_ins(own: bool) -> str:
    return "mcp_account" if own else "mcp"


def _finish(server: str, address: str, url: str | None, *, own: bool, json: bool) -> None:
    if not own:
        return _call_and_show("finish", url, server, json=json, body={"url": address})
    with gateway(url) as api:
        found = api.call("mcp_account.finish", _checked(server), body={"url": address})
    output.print_result(found, f"signed in at {server} as {found['signed_in']['user']}", as_json=json)


def _checked(server_id: str) -> str:
    return check_token(server_id, "server")


def _transport(command: list[str], at: str | None, values: list[str]) -> dict[str, Any]:
    """Return how a server is reached: at an address with headers, or by a program with variables.

    Values refer to secrets of the tenant, because other processes can read command-line arguments.
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


def _client_secret() -> str:
    """Prompt for the secret of a client, because other processes can read command-line arguments."""
    if sys.stdin.isatty():
        return getpass.getpass("Secret of the client (empty for none): ")
    return sys.stdin.readline().rstrip("\r\n")


def _show(server: McpServer, *, as_json: bool) -> Exit:
    output.print_result(server, _line(server), as_json=as_json)
    if not as_json:
        for mark, tools in ((" ", server["tools"]), ("+", server["changes"])):
            for tool in tools:
                first_line = tool["description"].strip().partition("\n")[0][:100]
                line = f"  {mark} {tool['name']}  {first_line}"
                output.print_line(line.rstrip())
        for refused in server["refused"]:
            output.print_line(f"  ! {refused['name']}: {refused['reason']}")
    return Exit.WARNING if _needs(server) else Exit.OK


def _line(server: McpServer) -> str:
    place = server["transport"]["url"] or " ".join(server["transport"]["command"] or ())
    return f"{server['id']:<24} {_state(server)}  {place}"


def _state(server: McpServer) -> str:
    if server["needs_sign_in"]:
        return f"needs a sign-in: banksman mcp sign-in {server['id']}"
    if server["problem"]:
        return f"problem: {server['problem']}"
    if server["changes"]:
        return f"new or changed tools: {len(server['changes'])}, banksman mcp approve {server['id']}"
    signed_in = f", signed in as {server['signed_in']['user']}" if server["signed_in"] else ""
    return f"tools: {len(server['tools'])}{signed_in}"


def _needs(server: McpServer) -> bool:
    return bool(server["needs_sign_in"] or server["problem"] or server["changes"])
