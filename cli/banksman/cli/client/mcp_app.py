"""The commands `banksman mcp …`."""

from __future__ import annotations

from typing import Annotated

import typer

from banksman.cli.client.options import Url, gateway
from banksman.cli.options import Json
from banksman.cli.output import exit_with

app = typer.Typer(
    help="Connect MCP servers, whose tools models may call.", no_args_is_help=True, rich_markup_mode=None
)

Server = Annotated[str, typer.Argument(help="Id of an MCP server.")]


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List the servers; exit code 1 if one needs an administrator."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.list_servers(gateway(url), as_json=json))


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
        list[str] | None,
        typer.Option(help="Header or variable: 'NAME=Bearer ${secret.TOKEN}'; repeatable."),
    ] = None,
    description: Annotated[str, typer.Option(help="Description of the server.")] = "",
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Run tools that the server marks as read-only without approval.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Configure a server and list its tools, which wait for `approve`."""
    from banksman.cli.client import mcp_servers

    transport = mcp_servers.transport(command or [], at, secret or [])
    body = {"id": server, "transport": transport, "description": description, "trusted": trusted}
    exit_with(mcp_servers.add(gateway(url), body, as_json=json))


@app.command()
def show(server: Server, url: Url = None, json: Json = False) -> None:
    """Show a server with its tools, approved and waiting for approval."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.show(gateway(url), server, as_json=json))


@app.command()
def look(server: Server, url: Url = None, json: Json = False) -> None:
    """List the tools again; withdraw changed ones until approved."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.look(gateway(url), server, as_json=json))


@app.command()
def approve(
    server: Server,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show new and changed tools; offer them to models once confirmed."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.approve(gateway(url), server, confirmed=yes, as_json=json))


@app.command("sign-in")
def sign_in(
    server: Server,
    gateway_url: Annotated[
        str | None, typer.Option(help="URL of the gateway for the browser (default: the value of --url).")
    ] = None,
    client_id: Annotated[
        str | None,
        typer.Option(help="Id of a registered OAuth client; the command prompts for its secret."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Sign in at a server that requires OAuth, for the whole tenant."""
    from banksman.cli.client import mcp_servers

    body = {"gateway_url": gateway_url, "client_id": client_id}
    exit_with(mcp_servers.sign_in(gateway(url), server, body, as_json=json))


@app.command()
def finish(
    server: Server,
    address: Annotated[str, typer.Argument(help="Address to which the browser was redirected.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Finish a sign-in that was begun by `sign-in`."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.finish(gateway(url), server, address, as_json=json))


@app.command("sign-out")
def sign_out(server: Server, url: Url = None, json: Json = False) -> None:
    """Delete the tokens; tools then need a new sign-in."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.sign_out(gateway(url), server, as_json=json))


@app.command()
def rm(server: Server, url: Url = None, json: Json = False) -> None:
    """Remove a server: models are no longer offered its tools."""
    from banksman.cli.client import mcp_servers

    exit_with(mcp_servers.remove(gateway(url), server, as_json=json))
