"""Options of the commands that use a gateway."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from banksman.cli.client.gateway import GatewayClient

Url = Annotated[
    str | None, typer.Option("--url", help="URL of the gateway (default: the gateway running here).")
]
Conversation = Annotated[
    str | None,
    typer.Option("--conversation", "-c", help="Continue this conversation (default: a new one)."),
]


@contextmanager
def gateway(url: str | None) -> Generator[GatewayClient]:
    """Return the gateway of the option, or the default one; its connections close with the context.

    Raises:
        BadInput: The URL is not an HTTP URL.
    """
    from banksman.cli.client.gateway import GatewayClient, find_url

    with GatewayClient.connected(find_url(url)) as found:
        yield found
