"""A fake gateway with scripted replies, on a real NATS server with real logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from banksman.bus.connection import Bus
from banksman.bus.errors import error_envelope
from banksman.bus.messages import Message
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import BanksmanError
from banksman.contracts.event_frames import event_frame
from banksman.contracts.events import Commit, Event, EventBody, MessageCompleted, RunFinished, RunStarted
from banksman.contracts.frames import CLIENT_FRAME, REQUEST_ID, Ack, ClientFrame, Replay
from banksman.contracts.ids import new_id
from banksman.contracts.wire import parse
from tests.support.timeouts import WAIT_TIMEOUT_S

T = TypeVar("T")
Respond = Callable[[ClientFrame], Ack]


@dataclass
class FakeGateway:
    """Serves the NATS API, records its requests, and replays stored logs."""

    bus: Bus
    tenant: str
    reply: Respond
    requests: list[tuple[str, str, ClientFrame]] = field(default_factory=list[tuple[str, str, ClientFrame]])
    """Subject, request id of the header, and body of each request."""
    replays: int = 0
    replayed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first replay."""
    lags: bool = False
    """True replays no stored events, like a replica that lags."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FakeGateway]:
        subscription = await self.bus.subscribe(subjects.all_of("api", self.tenant), self._handle)
        await self.bus.ready()
        try:
            yield self
        finally:
            await subscription.unsubscribe()

    async def _handle(self, message: Message) -> None:
        try:
            if message.subject.startswith(subjects.api(self.tenant, "replay")):
                await self._replay(message)
                return
            frame = parse_frame(message.data)
            self.requests.append((message.subject, message.headers[REQUEST_ID], frame))
            ack = self.reply(frame)
            await self.bus.publish(message.reply, ack.model_dump_json(exclude_none=True).encode())
        except BanksmanError as error:
            await self.bus.publish(message.reply, error_envelope(error))

    async def _replay(self, message: Message) -> None:
        self.replays += 1
        after = parse(Replay, message.data).after_seq
        conversation_id = message.subject.rpartition(".")[2]
        stored = [] if self.lags else await EventLog(self.bus).read(self.tenant, conversation_id)
        for one in stored:
            for event in one.commit.events:
                if event.seq > after:
                    frame = event_frame(event, conversation_id, one.commit.log_epoch, event.seq - 1)
                    await self.bus.publish(message.reply, json_of(frame))
        await self.bus.publish(message.reply, b"")
        self.replayed.set()


def parse_frame(data: bytes) -> ClientFrame:
    return CLIENT_FRAME.validate_json(data)


def json_of(frame: dict[str, object]) -> bytes:
    return json.dumps(frame).encode()


@dataclass
class Writer:
    """Appends to one log like its owner."""

    bus: Bus
    tenant: str
    conversation_id: str
    log_epoch: str = "e1"
    seq: int = 0
    position: int = 0

    async def write(self, *bodies: EventBody, run_id: str | None = None) -> None:
        commit = self.commit(*bodies, run_id=run_id)
        stored = await EventLog(self.bus).append(
            self.tenant, self.conversation_id, commit, after=self.position
        )
        assert isinstance(stored, int)
        self.position = stored

    def commit(self, *bodies: EventBody, run_id: str | None = None) -> Commit:
        first = self.seq + 1
        now = datetime.now(UTC)
        events = tuple(
            Event(seq=first + number, ts=now, run_id=run_id, data=body) for number, body in enumerate(bodies)
        )
        self.seq += len(bodies)
        return Commit(
            ts=now, id=new_id("k"), log_epoch=self.log_epoch, first_seq=first, owner=None, events=events
        )


def message(text: str) -> MessageCompleted:
    return MessageCompleted(message_id=new_id("m"), role="assistant", content=text)


def started(text: str) -> RunStarted:
    settings = RunSettings(assistant_id="default", model="demo:demo")
    return RunStarted(message_id=new_id("m"), message=text, settings=settings)


def ended(text: str) -> RunFinished:
    return RunFinished(status="completed", content=text, service="banksman", model="demo", iterations=1)


async def first(count: int, events: AsyncGenerator[T]) -> list[T]:
    """Return the first `count` items."""
    found: list[T] = []
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        async for event in events:
            found.append(event)
            if len(found) == count:
                return found
    return found
