"""All websockets of a process: authentication at the upgrade, and draining."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from starlette.websockets import WebSocket

from banksman.contracts.errors import BanksmanError
from banksman.contracts.frames import SUBPROTOCOL, Draining
from banksman.gateway.interfaces.websocket.connection import ConnectionContext, WebsocketConnection
from banksman.gateway.interfaces.websocket.transport import RESTART, UNSUPPORTED_PROTOCOL
from banksman.gateway.operation.caller import Caller, bearer
from banksman.gateway.operation.errors import error_response

DRAIN_S = 5.0
"""Seconds that websockets may take to close: two for the queued frames, two for the close frame."""


@dataclass
class Connections:
    context: ConnectionContext
    open: set[WebsocketConnection] = field(default_factory=lambda: set[WebsocketConnection]())
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    async def serve(self, websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols", [])
        try:
            caller = await self._upgrade_caller(websocket)
        except BanksmanError as error:
            await websocket.send_denial_response(error_response("/ws", error))
            return
        chosen = SUBPROTOCOL if SUBPROTOCOL in offered else None
        await websocket.accept(subprotocol=chosen)
        if offered and chosen is None:
            await websocket.close(UNSUPPORTED_PROTOCOL, f"this server supports {SUBPROTOCOL} only")
            return
        connection = WebsocketConnection(self.context, websocket, caller)
        self.open.add(connection)
        self._idle.clear()
        try:
            await connection.run()
        finally:
            self.open.discard(connection)
            if not self.open:
                self._idle.set()

    async def _upgrade_caller(self, websocket: WebSocket) -> Caller | None:
        """Return the caller whose ticket or token came with the upgrade; None if it came with neither."""
        ticket = websocket.query_params.get("ticket")
        if ticket is not None:
            return await self.context.tickets.redeem(ticket)
        token = bearer(websocket.headers.get("authorization"))
        return None if token is None else self.context.keys.caller(token)

    def revoke(self, key: str) -> None:
        """Close the websockets of the key with this SHA-256."""
        for connection in tuple(self.open):
            connection.revoke(key)

    async def drain(self, reconnect_after_s: float) -> None:
        """Send `server.draining` to every client and close; wait up to 5 s for the websockets to end."""
        for number, connection in enumerate(tuple(self.open)):
            # Spread the reconnects over another `reconnect_after_s`, so that they do not arrive at once.
            spread = reconnect_after_s * (1 + number / max(1, len(self.open)))
            connection.send(Draining(reconnect_after_s=round(spread, 2)))
            connection.end(RESTART, "the server is restarting")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()
