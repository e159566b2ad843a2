"""Follow one conversation: stored events by replay and live events by subscription, merged by `seq`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, TimedOut, checked_reply
from banksman.bus.messages import Message
from banksman.bus.names import STATUS_NO_RESPONDERS
from banksman.contracts import subjects
from banksman.contracts.api import Replay
from banksman.contracts.calls import Delta
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.events import Commit
from banksman.sdk.events import EventFrame, EventGap, EventSequence, LiveFrame, frames_of

logger = logging.getLogger(__name__)

CHECK_S = 20.0
"""Seconds without an event after which the log is read: a lost last commit leaves no visible gap."""
REPLAY_SILENCE_S = 5.0
"""Seconds without a message after which a replay counts as interrupted."""
REPLAY_BUDGET_S = 30.0
"""Seconds for which a replay without progress is retried."""
PAUSE_S = 0.2
WAITING_COMMITS = 1_000
"""Maximum live commits that wait for a slow reader. Further commits are read from the log later."""


class LiveCommits:
    """The live commits of one conversation, and whether some may be missing."""

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
            self._commits.put_nowait((live_frame(Delta.model_validate_json(message.data)),))

    def request_replay(self) -> None:
        """Request that the log is read before the next live commit."""
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


def live_frame(delta: Delta) -> LiveFrame:
    return LiveFrame(
        type=f"{delta.kind}.delta",
        ts=datetime.now(UTC),
        conversation_id=delta.conversation_id,
        run_id=delta.run_id,
        data={"message_id": delta.message_id, "offset": delta.offset, "text": delta.text},
    )


async def follow(
    bus: Bus, tenant: str, conversation_id: str, after_seq: int, *, live: bool = False
) -> AsyncGenerator[EventFrame | LiveFrame]:
    """Yield each stored and future event after `after_seq` once and in order, without end.

    With `live`, also yield text while a model writes it.
    """
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
        stack.callback(bus.on_reconnect(feed.request_replay))
        stack.callback(
            bus.on_slow_consumer(lambda dropped: feed.request_replay() if dropped == subject else None)
        )
        yield feed


async def _stored(
    bus: Bus, tenant: str, conversation_id: str, sequence: EventSequence
) -> AsyncGenerator[EventFrame]:
    """Yield the stored events that are new.

    An interrupted replay is requested again from its last event.
    """
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
    """Yield the events of one replay.

    Raises:
        RemoteError: The gateway refused the replay.
        Unavailable: No gateway serves the API, or the replay was interrupted.
    """
    subject = subjects.api(tenant, "replay", conversation_id)
    replies: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    # A gateway refuses fields that its version does not know, so fields with default values are omitted.
    body = Replay(after_seq=after_seq).model_dump_json(exclude_defaults=True).encode()
    with bus.replies.expect(subject, replies.put_nowait, replies.put_nowait, until_reconnect=True) as inbox:
        await bus.replies.send(subject, body, inbox)
        while data := await _next(replies, subject):
            yield EventFrame.model_validate_json(checked_reply(data))


async def _next(replies: asyncio.Queue[Message | BanksmanError], subject: str) -> bytes:
    try:
        async with asyncio.timeout(REPLAY_SILENCE_S):
            message = await replies.get()
    except TimeoutError as error:
        raise TimedOut(subject, REPLAY_SILENCE_S) from error
    if isinstance(message, BanksmanError):
        raise message
    if message.status == STATUS_NO_RESPONDERS:
        raise NoResponders(subject)
    return message.data
