"""The NATS API as a transport."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from banksman.bus.connection import Bus
from banksman.bus.errors import checked_reply
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.api import REQUEST_ID, SCHEMA_VERSION
from banksman.contracts.calls import FileEntry
from banksman.contracts.event_frames import is_shown
from banksman.contracts.frames import Ack, Detail, InputReply
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import WIRE_VERSION, JsonObject, Stored
from banksman.contracts.work import ApprovalRequest
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.events import EventFrame, LiveFrame
from banksman.sdk.transports.base import RequestFrame
from banksman.sdk.transports.nats_feed import follow

REPLY_TIMEOUT_S = 10.0
"""Timeout of one request in seconds."""
BUDGET_S = 30.0
"""Seconds for which a request is retried. All attempts have the same id, so the request has one effect."""
PAUSE_S = 0.2
SLICE_BYTES = 512 * 1024
"""Bytes of a file in one message."""

M = TypeVar("M", bound=BaseModel)


class _Page(Stored):
    items: tuple[FileEntry, ...]
    next: str | None


class _Slice(Stored):
    data_base64: str
    more: bool


class _Done(Stored):
    pass


class NatsTransport:
    def __init__(self, bus: Bus, tenant: str) -> None:
        self._bus = bus
        self._tenant = tenant

    @property
    def tenant(self) -> str:
        return self._tenant

    @property
    def files(self) -> NatsFiles:
        return NatsFiles(self)

    async def ready(self, timeout_s: float) -> None:
        await self._bus.ready(timeout_s)

    async def send(self, frame: RequestFrame, name: str | None = None) -> Ack:
        # A requested value may be null.
        body = frame.model_dump_json(exclude_none=not isinstance(frame, InputReply)).encode()
        names = () if name is None else (name,)
        return await self._request((*frame.type.split("."), *names), body, frame.id, Ack)

    async def call(
        self,
        operation: str,
        reply: type[M],
        *names: str,
        body: JsonObject | None = None,
        request_id: str | None = None,
    ) -> M:
        tokens = (*operation.split("."), *names)
        return await self._request(tokens, to_json(body or {}), request_id or new_id("q"), reply)

    async def follow(
        self, conversation_id: str, after_seq: int, detail: Detail, *, live: bool
    ) -> AsyncGenerator[EventFrame | LiveFrame]:
        events = follow(self._bus, self._tenant, conversation_id, after_seq, live=live)
        async with aclosing(events) as frames:
            async for frame in frames:
                if is_shown(frame.type, detail):
                    yield frame

    @asynccontextmanager
    async def approvals(self) -> AsyncGenerator[AsyncIterator[ApprovalRequest]]:
        requests: asyncio.Queue[ApprovalRequest] = asyncio.Queue()

        async def received(message: Message) -> None:
            request = ApprovalRequest.model_validate_json(message.data)
            if request.input is None:
                requests.put_nowait(request)

        subscription = await self._bus.subscribe(subjects.approval_request(self._tenant, ANY), received)
        try:
            yield _items(requests)
        finally:
            await subscription.unsubscribe()

    async def _request(self, tokens: tuple[str, ...], body: bytes, request_id: str, reply: type[M]) -> M:
        subject = subjects.api(self._tenant, *tokens)
        headers = {REQUEST_ID: request_id, SCHEMA_VERSION: str(WIRE_VERSION)}

        async def attempt() -> M:
            await self._bus.wait_connected()
            data = await self._bus.request(subject, body, REPLY_TIMEOUT_S, headers)
            return reply.model_validate_json(checked_reply(data))

        return await retry(
            attempt,
            again=self._bus.may_recover,
            backoff=Backoff(PAUSE_S, PAUSE_S),
            budget_s=BUDGET_S,
            failure=f"{subject}: no gateway responded",
        )


class NatsFiles:
    """Files, in slices that fit a message."""

    def __init__(self, transport: NatsTransport) -> None:
        self._transport = transport

    async def list(self, conversation_id: str, path: str) -> tuple[FileEntry, ...]:
        found: tuple[FileEntry, ...] = ()
        after: str | None = ""
        while after is not None:
            body: JsonObject = {"path": path, "after": after}
            page = await self._transport.call("file.list", _Page, conversation_id, body=body)
            found, after = (*found, *page.items), page.next
        return found

    async def read(self, conversation_id: str, path: str) -> bytes:
        content = bytearray()
        more = True
        while more:
            body: JsonObject = {"path": path, "offset": len(content)}
            piece = await self._transport.call("file.read", _Slice, conversation_id, body=body)
            content += base64.b64decode(piece.data_base64)
            more = piece.more
        return bytes(content)

    async def write(self, conversation_id: str, path: str, data: bytes) -> None:
        upload = new_id("u")
        for offset in range(0, max(len(data), 1), SLICE_BYTES):
            end = offset + SLICE_BYTES
            body: JsonObject = {
                "path": path,
                "data_base64": base64.b64encode(data[offset:end]).decode(),
                "upload": upload,
                "offset": offset,
                "last": end >= len(data),
            }
            await self._transport.call("file.write", _Done, conversation_id, body=body)

    async def delete(self, conversation_id: str, path: str) -> None:
        await self._transport.call("file.delete", _Done, conversation_id, body={"path": path})


async def _items(queue: asyncio.Queue[ApprovalRequest]) -> AsyncIterator[ApprovalRequest]:
    while True:
        yield await queue.get()
