"""The NATS API as a transport."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, TimedOut, checked_reply
from banksman.bus.messages import Message
from banksman.bus.names import STATUS_NO_RESPONDERS
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.event_frames import is_shown
from banksman.contracts.events import Commit
from banksman.contracts.frames import REQUEST_ID, SCHEMA_VERSION, Ack, Detail, InputReply, Replay
from banksman.contracts.ids import new_id
from banksman.contracts.live_output import Delta, ModelWaiting, live_output
from banksman.contracts.runner_requests import FileEntry
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import WIRE_VERSION, JsonObject, Stored
from banksman.contracts.work import ApprovalRequest
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.events import EventFrame, EventGap, EventSequence, LiveFrame, RequestFrame, frames_of

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
        self.tenant = tenant
        self.files = NatsFiles(self)

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
        events = follow(self._bus, self.tenant, conversation_id, after_seq, live=live)
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

        subscription = await self._bus.subscribe(subjects.approval_request(self.tenant, ANY), received)
        try:
            yield _items(requests)
        finally:
            await subscription.unsubscribe()

    async def _request(self, tokens: tuple[str, ...], body: bytes, request_id: str, reply: type[M]) -> M:
        subject = subjects.api(self.tenant, *tokens)
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


logger = logging.getLogger(__name__)

CHECK_S = 20.0
"""Seconds without an event after which the log is read: a lost last commit leaves no visible gap."""
REPLAY_SILENCE_S = 5.0
"""Seconds without a message after which a replay counts as interrupted."""
REPLAY_BUDGET_S = 30.0
"""Seconds for which a replay without progress is retried."""

WAITING_COMMITS = 1_000
"""Maximum live commits that wait for a slow reader. Further commits are read from the log later."""


class LiveCommits:
    def __init__(self, conversation_id: str) -> None:
        self._conversation_id = conversation_id
        self._commits: asyncio.Queue[tuple[EventFrame | LiveFrame, ...]] = asyncio.Queue(WAITING_COMMITS)
        self._replay_requested = True

    async def received(self, message: Message) -> None:
        try:
            commit = Commit.model_validate_json(message.data)
            self._commits.put_nowait(frames_of(commit, self._conversation_id))
        except (ValidationError, asyncio.QueueFull):
            self.request_replay()

    async def received_delta(self, message: Message) -> None:
        """Add a piece of an unfinished message, which is dropped if the reader is slow."""
        with contextlib.suppress(ValidationError, asyncio.QueueFull):
            live = live_output(message.data)
            # A gateway requested the text again for a client of its own.
            if not (isinstance(live, Delta) and live.repeated):
                self._commits.put_nowait((live_frame(live),))

    def request_replay(self) -> None:
        self._replay_requested = True
        if self._commits.empty():
            self._commits.put_nowait(())

    def take_replay_request(self) -> bool:
        """Return whether the log must be read now, and reset the request."""
        requested, self._replay_requested = self._replay_requested, False
        return requested

    async def next(self) -> tuple[EventFrame | LiveFrame, ...]:
        """Return the events of the next live commit; none if the log must be read first."""
        try:
            async with asyncio.timeout(CHECK_S):
                return await self._commits.get()
        except TimeoutError:
            self._replay_requested = True
            return ()


def live_frame(live: Delta | ModelWaiting) -> LiveFrame:
    if isinstance(live, ModelWaiting):
        kind, data = "model.waiting", live.pause.model_dump()
    else:
        kind, data = f"{live.kind}.delta", live.model_dump(include={"message_id", "offset", "text"})
    ids = {"conversation_id": live.conversation_id, "run_id": live.run_id}
    return LiveFrame(type=kind, ts=datetime.now(UTC), data=data, **ids)


async def follow(
    bus: Bus, tenant: str, conversation_id: str, after_seq: int, *, live: bool = False
) -> AsyncGenerator[EventFrame | LiveFrame]:
    """Yield each stored and future event after `after_seq` once and in order; `live` adds unfinished text."""
    sequence = EventSequence(after_seq)
    async with _subscribed(bus, tenant, conversation_id, live) as feed:
        while True:
            if feed.take_replay_request():
                async with aclosing(_stored(bus, tenant, conversation_id, sequence)) as frames:
                    async for frame in frames:
                        yield frame
            for frame in await feed.next():
                try:
                    is_next = isinstance(frame, LiveFrame) or sequence.accept(frame)
                except EventGap:
                    feed.request_replay()
                    break
                if is_next:
                    yield frame


@asynccontextmanager
async def _subscribed(bus: Bus, tenant: str, conversation_id: str, live: bool) -> AsyncGenerator[LiveCommits]:
    feed = LiveCommits(conversation_id)
    subject = subjects.live(tenant, conversation_id)
    async with AsyncExitStack() as stack:
        subscription = await bus.subscribe(subject, feed.received)
        stack.push_async_callback(subscription.unsubscribe)
        if live:
            deltas = await bus.subscribe(subjects.delta(tenant, conversation_id), feed.received_delta)
            stack.push_async_callback(deltas.unsubscribe)
        stack.callback(bus.on_loss(feed.request_replay, subject))
        yield feed


async def _stored(
    bus: Bus, tenant: str, conversation_id: str, sequence: EventSequence
) -> AsyncGenerator[EventFrame]:
    """Yield the new stored events. An interrupted replay is requested again from its last event."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REPLAY_BUDGET_S
    while True:
        try:
            async with aclosing(_replay(bus, tenant, conversation_id, sequence.seq)) as frames:
                async for frame in frames:
                    if sequence.accept(frame):
                        deadline = loop.time() + REPLAY_BUDGET_S
                        yield frame
            return
        except (Unavailable, EventGap) as error:
            if bus.closed.is_set() or loop.time() > deadline:
                raise Unavailable(f"{conversation_id}: its stored events could not be read") from error
            logger.info("%s: reading its events again after %d", conversation_id, sequence.seq)
        await asyncio.sleep(PAUSE_S)


async def _replay(bus: Bus, tenant: str, conversation_id: str, after_seq: int) -> AsyncGenerator[EventFrame]:
    """Yield the events of one replay; raise `Unavailable` if it is interrupted."""
    subject = subjects.api(tenant, "replay", conversation_id)
    replies: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    # A gateway refuses fields that its version does not know, so fields with default values are omitted.
    body = Replay(after_seq=after_seq).model_dump_json(exclude_defaults=True).encode()
    with bus.replies.expect(subject, replies.put_nowait, replies.put_nowait, until_reconnect=True) as inbox:
        await bus.replies.send(subject, body, inbox)
        while data := (await next_reply(replies, subject, REPLAY_SILENCE_S)).data:
            yield EventFrame.model_validate_json(checked_reply(data))


async def next_reply(
    replies: asyncio.Queue[Message | BanksmanError], subject: str, silence_s: float
) -> Message:
    """Return the next of several replies; raise `TimedOut` after `silence_s` seconds without one."""
    try:
        async with asyncio.timeout(silence_s):
            message = await replies.get()
    except TimeoutError as error:
        raise TimedOut(subject, silence_s) from error
    if isinstance(message, BanksmanError):
        raise message
    if message.status == STATUS_NO_RESPONDERS:
        raise NoResponders(subject)
    return message
