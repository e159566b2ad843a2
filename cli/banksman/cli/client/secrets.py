"""`banksman secrets`: values for tools that no model sees."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from banksman.cli import output
from banksman.cli.client.options import Url, gateway
from banksman.cli.options import Json
from banksman.cli.output import clean
from banksman.contracts.ids import check_token

app = typer.Typer(help="Values for tools that no model sees.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="A letter, then letters, digits or `_`.")]

Server = Annotated[
    list[str] | None,
    typer.Option(help="Only this tool server receives it, or `mcp:ID` for an MCP server; repeatable."),
]


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List the names of the secrets."""
    with gateway(url) as api:
        found = api.items("secret.list")
    for secret in found:
        servers = f", for {', '.join(secret['servers'])}" if secret.get("servers") else ""
        line = clean(f"{secret['name']:<32} set {secret['updated_at']} by {secret['updated_by']}{servers}")
        output.print_result(secret, line, as_json=json)
    if not found and not json:
        output.print_line("no secrets")


@app.command("set")
def set_(name: Name, server: Server = None, url: Url = None, json: Json = False) -> None:
    """Set a secret, read from a prompt or from standard input."""
    # Other processes can read the arguments of a command.
    value = getpass.getpass(f"{name}: ") if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
    body = {"value": value, **({"servers": server} if server else {})}
    with gateway(url) as api:
        stored = api.call("secret.set", check_token(name, "name"), body=body)
    output.print_result(stored, f"set {name}", as_json=json)


@app.command()
def rm(name: Name, url: Url = None, json: Json = False) -> None:
    """Remove a secret: calls of tools that need it are refused."""
    with gateway(url) as api:
        api.call("secret.delete", check_token(name, "name"))
    output.print_result({"name": name}, f"removed {name}", as_json=json)
