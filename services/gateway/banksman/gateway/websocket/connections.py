"""All websockets of a process: who is let in, and how they all end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from banksman.contracts.errors import ErrorCode, Unauthorized
from banksman.contracts.frames import SUBPROTOCOL, Draining
from banksman.gateway.service.auth import Caller, Tickets, bearer
from banksman.gateway.websocket.connection import RESTART, UNSUPPORTED_PROTOCOL, Connection, Terms

DRAIN_S = 5.0
"""Seconds that websockets may take to close; each gives its client two, and two more for its last frames."""


@dataclass
class Sockets:
    """The websockets that are open."""

    terms: Terms
    tickets: Tickets
    open: set[Connection] = field(default_factory=lambda: set[Connection]())
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection until it ends."""
        offered = websocket.scope.get("subprotocols", [])
        try:
            caller = await self._at_upgrade(websocket)
        except Unauthorized as error:
            await _deny(websocket, str(error))
            return
        chosen = SUBPROTOCOL if SUBPROTOCOL in offered else None
        await websocket.accept(subprotocol=chosen)
        if offered and chosen is None:
            await websocket.close(UNSUPPORTED_PROTOCOL, f"this server speaks {SUBPROTOCOL}")
            return
        connection = Connection(self.terms, websocket, caller)
        self.open.add(connection)
        self._idle.clear()
        try:
            await connection.run()
        finally:
            self.open.discard(connection)
            if not self.open:
                self._idle.set()

    async def _at_upgrade(self, websocket: WebSocket) -> Caller | None:
        """Who shows a key or a ticket with the request; None when nobody does."""
        ticket = websocket.query_params.get("ticket")
        if ticket is not None:
            return await self.tickets.redeem(ticket)
        token = bearer(websocket.headers.get("authorization"))
        return None if token is None else self.terms.keys.caller(token)

    async def drain(self, reconnect_after_s: float) -> None:
        """Tell every client to reconnect elsewhere, and close; who does not end is left to the server."""
        for number, connection in enumerate(tuple(self.open)):
            # Spread over as long again, so that not all come at once.
            spread = reconnect_after_s * (1 + number / max(1, len(self.open)))
            connection.send(Draining(reconnect_after_s=round(spread, 2)))
            connection.end(RESTART, "the server is restarting")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()


async def _deny(websocket: WebSocket, message: str) -> None:
    body = {"error": {"message": message, "code": ErrorCode.UNAUTHORIZED}}
    await websocket.send_denial_response(JSONResponse(body, 401, {"www-authenticate": "Bearer"}))
