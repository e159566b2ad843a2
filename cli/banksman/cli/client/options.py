"""Options of the commands that use a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from banksman.cli.client.address import Address

Url = Annotated[
    str | None, typer.Option("--url", help="URL of the gateway (default: the gateway running here).")
]
Conversation = Annotated[
    str | None,
    typer.Option("--conversation", "-c", help="Continue this conversation (default: a new one)."),
]


def gateway(url: str | None) -> Address:
    """Return the address of the gateway to use.

    Raises:
        BanksmanError: As `find_gateway`.
    """
    from banksman.cli.client.address import find_gateway

    return find_gateway(url)
