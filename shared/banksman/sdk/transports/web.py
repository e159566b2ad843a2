"""The websocket and HTTP as a transport."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from pydantic import BaseModel

from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.frames import Ack, ConversationCreate, Detail, InputReply
from banksman.contracts.ids import new_id
from banksman.contracts.wire import JsonObject, Stored
from banksman.contracts.work import ApprovalRequest
from banksman.sdk.events import EventFrame, LiveFrame, RequestFrame
from banksman.sdk.transports.http import HttpApi, HttpFiles, websocket_url
from banksman.sdk.transports.subscriptions import SharedSubscriptions
from banksman.sdk.transports.websocket import JsonFrame, Websocket

BUDGET_S = 30.0
"""Seconds for which a request is retried. All attempts have the same id, so the request has one effect."""
PAUSE_S = 0.5

M = TypeVar("M", bound=BaseModel)


class _Open(Stored):
    items: tuple[dict[str, Any], ...]


class ClientClosed(BanksmanError):
    """The client was closed."""


class WebTransport:
    def __init__(self, url: str, token: str | None, name: str, reconnect_s: tuple[float, float]) -> None:
        self._http = HttpApi(url, token)
        self.files = HttpFiles(self._http)
        self._websocket = Websocket(
            websocket_url(url),
            token,
            name,
            reconnect_s,
            on_welcome=self._welcomed,
            on_frame=self._received,
        )
        self._subscriptions = SharedSubscriptions(self._websocket)
        self._inbox = Inbox(self._websocket, self._open_approvals)

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, url: str, token: str | None, name: str, reconnect_s: tuple[float, float], timeout_s: float
    ) -> AsyncGenerator[WebTransport]:
        """Connect for the context; raise `ConnectionEnded` if refused, `Unavailable` without a response."""
        transport = cls(url, token, name, reconnect_s)
        running = asyncio.create_task(transport._run(), name=f"websocket of {name}")
        try:
            await transport._opened(timeout_s)
            yield transport
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await transport._http.client.aclose()

    @property
    def tenant(self) -> str:
        welcome = self._websocket.welcome
        return "" if welcome is None else welcome.tenant

    async def ready(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._websocket.request({"type": "ping", "id": new_id("p")})
        except TimeoutError as error:
            raise Unavailable(f"the gateway did not respond within {timeout_s:g} s") from error

    async def send(self, frame: RequestFrame, name: str | None = None) -> Ack:
        # A requested value may be null.
        body = frame.model_dump(mode="json", exclude_none=not isinstance(frame, InputReply))
        try:
            async with asyncio.timeout(BUDGET_S):
                while True:
                    try:
                        ack = Ack.model_validate(await self._websocket.request(body))
                        break
                    except BanksmanError as error:
                        if not error.retryable:
                            raise
                        pause_s = error.retry_after_s or PAUSE_S
                    await asyncio.sleep(pause_s)
        except TimeoutError as error:
            reason = f"{frame.type}: no reply within {BUDGET_S:g} s: {self._websocket.problem}"
            raise Unavailable(reason) from error
        if isinstance(frame, ConversationCreate) and ack.conversation_id is not None:
            # The gateway subscribed this websocket to the new conversation, and limits subscriptions.
            self._subscriptions.release(ack.conversation_id)
        return ack

    async def call(
        self,
        operation: str,
        reply: type[M],
        *names: str,
        body: JsonObject | None = None,
        request_id: str | None = None,
    ) -> M:
        return reply.model_validate_json(await self._http.call(operation, names, body, request_id))

    def follow(
        self, conversation_id: str, after_seq: int, detail: Detail, *, live: bool
    ) -> AsyncGenerator[EventFrame | LiveFrame]:
        return self._subscriptions.follow(conversation_id, after_seq, detail, live)

    def approvals(self) -> AbstractAsyncContextManager[AsyncIterator[ApprovalRequest]]:
        return self._inbox.new()

    async def _open_approvals(self) -> tuple[ApprovalRequest, ...]:
        listed = await self.call("approval.list", _Open)
        return tuple(ApprovalRequest(tenant=self.tenant, **request) for request in listed.items)

    def _welcomed(self) -> None:
        self._subscriptions.resume()
        self._inbox.resume()

    def _received(self, frame: JsonFrame) -> None:
        if frame["type"] == "approvals.changed":
            self._inbox.changed()
        else:
            self._subscriptions.receive(frame)

    async def _run(self) -> None:
        try:
            await self._websocket.run()
            self._subscriptions.fail(self._websocket.ended.result())
        finally:
            closed = ClientClosed("the client was closed")
            self._websocket.end(closed)
            self._subscriptions.fail(closed)

    async def _opened(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._websocket.welcomed()
        except TimeoutError as error:
            raise Unavailable(f"no gateway within {timeout_s:g} s: {self._websocket.problem}") from error


ReadOpen = Callable[[], Awaitable[tuple[ApprovalRequest, ...]]]
"""Returns the tenant's open approval requests, oldest first."""


class Inbox:
    def __init__(self, websocket: Websocket, read_open: ReadOpen) -> None:
        self._websocket = websocket
        self._read_open = read_open
        self._readers: set[asyncio.Event] = set()

    @asynccontextmanager
    async def new(self) -> AsyncGenerator[AsyncIterator[ApprovalRequest]]:
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
