"""`banksman secrets`: values for tools that no model sees."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.client.view import clean
from banksman.cli.output import Exit
from banksman.contracts.ids import check_token

PATH = "/context/secrets"


def list_secrets(address: Address, *, as_json: bool = False) -> Exit:
    """List the secrets by name, each with the time and the user of its last change."""
    with Http.to(address) as http:
        found = http.items(PATH)
    for secret in found:
        if as_json:
            output.print_json(secret)
        else:
            servers = f", for {', '.join(secret['servers'])}" if secret.get("servers") else ""
            output.print_line(
                clean(f"{secret['name']:<32} set {secret['updated_at']} by {secret['updated_by']}{servers}")
            )
    if not found and not as_json:
        output.print_line("no secrets")
    return Exit.OK


def set_secret(address: Address, name: str, servers: Sequence[str] = (), *, as_json: bool = False) -> Exit:
    """Set a secret, read from a prompt or standard input: other processes can read command-line arguments.

    Raises:
        GatewayRefused: the gateway refuses the name or the value.
    """
    value = getpass.getpass(f"{name}: ") if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
    with Http.to(address) as http:
        only = {"servers": list(servers)} if servers else {}
        stored = http.send("PUT", _path(name), {"value": value, **only})
    output.print_json(stored) if as_json else output.print_line(f"set {name}")
    return Exit.OK


def remove(address: Address, name: str, *, as_json: bool = False) -> Exit:
    """Remove a secret."""
    with Http.to(address) as http:
        http.send("DELETE", _path(name))
    output.print_json({"name": name}) if as_json else output.print_line(f"removed {name}")
    return Exit.OK


def _path(name: str) -> str:
    return f"{PATH}/{check_token(name, 'name')}"
