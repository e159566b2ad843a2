"""The commands `banksman secrets …`."""

from __future__ import annotations

from typing import Annotated

import typer

from banksman.cli.client.options import Url, gateway
from banksman.cli.options import Json
from banksman.cli.output import exit_with

app = typer.Typer(help="Values for tools that no model sees.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="A letter, then letters, digits or `_`.")]

Server = Annotated[
    list[str] | None,
    typer.Option(help="Only this tool server receives it, or `mcp:ID` for an MCP server; repeatable."),
]


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List the names of the secrets."""
    from banksman.cli.client import secrets

    exit_with(secrets.list_secrets(gateway(url), as_json=json))


@app.command("set")
def set_(name: Name, server: Server = None, url: Url = None, json: Json = False) -> None:
    """Set a secret, read from a prompt or from standard input."""
    from banksman.cli.client import secrets

    exit_with(secrets.set_secret(gateway(url), name, server or (), as_json=json))


@app.command()
def rm(name: Name, url: Url = None, json: Json = False) -> None:
    """Remove a secret: calls of tools that need it are refused."""
    from banksman.cli.client import secrets

    exit_with(secrets.remove(gateway(url), name, as_json=json))
