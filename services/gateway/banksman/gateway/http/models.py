"""The bodies of requests and responses that only HTTP has. OpenAPI is generated from them."""

from __future__ import annotations

from banksman.contracts.wire import Stored


class IssuedTicket(Stored):
    """A ticket that opens one websocket: `GET /ws?ticket=…`."""

    ticket: str
    expires_in_s: int
