"""New approval requests of a tenant over the websocket, which notifies of changes to the open requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from banksman.contracts.ids import new_id
from banksman.contracts.work import ApprovalRequest
from banksman.sdk.websocket import Websocket

ReadOpen = Callable[[], Awaitable[tuple[ApprovalRequest, ...]]]
"""Returns the tenant's open approval requests, oldest first."""


class Inbox:
    """The readers of one websocket that wait for new approval requests."""

    def __init__(self, websocket: Websocket, read_open: ReadOpen) -> None:
        self._websocket = websocket
        self._read_open = read_open
        self._readers: set[asyncio.Event] = set()

    @asynccontextmanager
    async def new(self) -> AsyncGenerator[AsyncIterator[ApprovalRequest]]:
        """Receive each request that is opened after the start of the context once."""
        known = {request.approval_id for request in await self._read_open()}
        changed = asyncio.Event()
        self._readers.add(changed)
        try:
            self.resume()
            yield self._follow(changed, known)
        finally:
            self._readers.discard(changed)

    def resume(self) -> None:
        """Subscribe on a new connection, and read the requests opened while there was none."""
        if self._readers:
            self._websocket.post({"type": "approvals.subscribe", "id": new_id("f")})
            self.changed()

    def changed(self) -> None:
        """Make all readers read the list."""
        for reader in self._readers:
            reader.set()

    async def _follow(self, changed: asyncio.Event, known: set[str]) -> AsyncIterator[ApprovalRequest]:
        while True:
            await changed.wait()
            changed.clear()
            found = await self._read_open()
            for request in found:
                if request.approval_id not in known:
                    yield request
            known = {request.approval_id for request in found}
