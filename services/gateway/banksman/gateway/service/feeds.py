"""From the logs to clients: stored events in order and without gaps, and the deltas between them.

Commits of an open conversation arrive once in a process, whatever the number of its subscribers; so do
deltas and the running output of tools, which are lost when they are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from typing import Any, Protocol

from pydantic_core import to_json

from banksman.bus.connection import Bus
from banksman.bus.live import Following, LiveHub
from banksman.bus.log import StoredCommit
from banksman.contracts.calls import CallProgress, Delta
from banksman.contracts.events import (
    Event,
    MessageCompleted,
    RunFinished,
    ToolCallCompleted,
)
from banksman.contracts.frames import (
    DETAILS,
    Detail,
    ReplayDone,
    ResyncRequired,
    detail_of,
)
from banksman.gateway.service.event_frames import encoded_event, subscribed
from banksman.gateway.service.live_output import LossyChannel
from banksman.gateway.service.views import ConversationView, Views

logger = logging.getLogger(__name__)

EARLY_DELTAS = 4_096
"""Deltas that may wait for the stored events before them."""


class Sink(Protocol):
    """Where a subscription's frames go."""

    def put(self, frame: str) -> None:
        """Take a frame."""
        ...

    def put_delta(self, key: tuple[str, ...], frame: dict[str, Any]) -> None:
        """Take a piece of text that may be merged with the one before it."""
        ...

    async def room(self) -> None:
        """Wait until there is room for more."""
        ...


class OutOfReach(Exception):
    """The events that a client asks for cannot be given: it must read the conversation again."""

    def __init__(self, conversation_id: str, oldest_seq: int, reason: str) -> None:
        self.conversation_id = conversation_id
        self.oldest_seq = oldest_seq
        self.reason = reason
        super().__init__(reason)


class Feed:
    """One subscription of one client to one conversation."""

    def __init__(
        self,
        fanout: Fanout,
        tenant: str,
        conversation_id: str,
        view: ConversationView,
        *,
        after_seq: int | None,
        detail: Detail,
        sink: Sink,
    ) -> None:
        self.tenant = tenant
        self.conversation_id = conversation_id
        self.head = subscribed(conversation_id, view)
        self._fanout = fanout
        self._sink = sink
        self._rank = DETAILS.index(detail)
        self._last = view.last_seq if after_seq is None else after_seq
        """Number of the last event considered."""
        self._prev = self._last
        """Number of the last event sent."""
        self._position = view.stream_seq if after_seq is None else view.position(after_seq)
        # A log that was restored holds the epochs of before too; all of it is shown under the one it has now.
        self._log_epoch, self._head = view.log_epoch, view.stream_seq
        self._completed: str | None = None
        self._run_id: str | None = None
        self.ended = asyncio.Event()
        """Set once the run that it is limited to has ended."""
        self._closed = False
        self._following: Following | None = None
        self._channel: LossyChannel | None = None
        self._early: deque[Delta | CallProgress] | None = deque(maxlen=EARLY_DELTAS)
        """What came before the stored events that it belongs after; None once live."""
        self._over: set[str] = set()
        """Messages and calls that the stored events end: nothing early is shown of them."""

    async def listen(self) -> None:
        """Begin to keep deltas: none of what is written from here on is missed by `follow`."""
        if self._channel is None:
            self._channel = await self._fanout.join(self)

    async def follow(self, *, quiet: bool = False) -> None:
        """Send what is stored, then `replay.done`, then each event as it comes, until `close`.

        Returns when it is live; further frames come by themselves.

        Args:
            quiet: True sends no `replay.done`.

        Raises:
            LogBroken, Poison, Unavailable: the log could not be read.
        """
        await self.listen()
        log = self._fanout.views.log
        for stored in await log.read(self.tenant, self.conversation_id, after=self._position):
            await self._sink.room()
            if self._closed:
                return
            self._take(stored)
        self._following = await self._fanout.hub.follow(
            self.tenant, self.conversation_id, after_stream_seq=self._position, on_commit=self._take
        )
        self._show_early()
        if not quiet:
            done = ReplayDone(conversation_id=self.conversation_id, seq=self._last)
            self._sink.put(done.model_dump_json())

    def lose(self, reason: str) -> None:
        """Tell the client that what it has is no longer what is stored, and send nothing more."""
        if self._closed:
            return
        self._closed = True
        lost = ResyncRequired(
            conversation_id=self.conversation_id, oldest_seq=self.head.oldest_seq, reason=reason
        )
        self._sink.put(lost.model_dump_json())

    async def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._channel is not None:
            await self._fanout.leave(self._channel, self)
            self._channel = None
        if self._following is not None:
            await self._following.close()
            self._following = None

    @property
    def shows_progress(self) -> bool:
        """Whether it wants to know of running tools."""
        return self._rank >= DETAILS.index("steps")

    def only(self, run_id: str) -> None:
        """Send nothing but the events of one run from here on."""
        self._run_id = run_id

    def take(self, lossy: Delta | CallProgress) -> None:
        """Send a piece of a message that is being written, or what a running tool does."""
        if self._early is not None:
            self._early.append(lossy)
        else:
            self._show(lossy)

    def _show_early(self) -> None:
        early, self._early = self._early or (), None
        for lossy in early:
            subject = lossy.message_id if isinstance(lossy, Delta) else lossy.tool_call_id
            if subject not in self._over:
                self._show(lossy)
        self._over.clear()

    def _show(self, lossy: Delta | CallProgress) -> None:
        match lossy:
            case Delta():
                self._show_delta(lossy)
            case CallProgress():
                self._show_progress(lossy)

    def _show_delta(self, delta: Delta) -> None:
        if self._run_id not in (None, delta.run_id):
            return
        is_message = delta.kind == "message"
        if delta.message_id == self._completed or not (is_message or self._rank >= DETAILS.index("full")):
            return
        data: dict[str, Any] = {"message_id": delta.message_id, "offset": delta.offset, "text": delta.text}
        frame = self._lossy_frame(f"{delta.kind}.delta", delta.run_id, data)
        self._sink.put_delta((self.conversation_id, delta.kind, delta.message_id), frame)

    def _show_progress(self, progress: CallProgress) -> None:
        if self._run_id not in (None, progress.run_id):
            return
        data: dict[str, Any] = {"tool_call_id": progress.tool_call_id}
        if progress.kind == "started":
            frame = self._lossy_frame(
                "tool_call.started", progress.run_id, {**data, "runner": progress.runner}
            )
            self._sink.put(to_json(frame).decode())
        elif self._rank >= DETAILS.index("full"):
            data |= {"stream": progress.stream, "text": progress.text}
            frame = self._lossy_frame("tool_call.output", progress.run_id, data)
            key = (self.conversation_id, "output", progress.tool_call_id, progress.stream or "")
            self._sink.put_delta(key, frame)

    def _take(self, stored: StoredCommit) -> None:
        self._position = stored.stream_seq
        for event in stored.commit.events:
            if event.seq > self._last and not self._closed:
                self._last = event.seq
                in_head = stored.stream_seq <= self._head
                self._consider(event, self._log_epoch if in_head else stored.commit.log_epoch)

    def _consider(self, event: Event, log_epoch: str) -> None:
        match event.data:
            case MessageCompleted(message_id=message_id):
                self._completed = message_id
                self._ended(message_id)
            case ToolCallCompleted(result=result):
                self._ended(result.tool_call_id)
            case _:
                pass
        if self._run_id not in (None, event.run_id) or DETAILS.index(detail_of(event)) > self._rank:
            return
        self._sink.put(encoded_event(event, self.conversation_id, log_epoch, self._prev))
        self._prev = event.seq
        if self._run_id is not None and isinstance(event.data, RunFinished):
            self.ended.set()

    def _ended(self, message_or_call: str) -> None:
        if self._early is not None:
            self._over.add(message_or_call)

    def _lossy_frame(self, kind: str, run_id: str, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": kind,
            "ts": datetime.now(UTC).isoformat(),
            "conversation_id": self.conversation_id,
            "run_id": run_id,
            "data": data,
        }


class Fanout:
    """All feeds of a process."""

    def __init__(self, bus: Bus, hub: LiveHub, views: Views) -> None:
        self.hub = hub
        self.views = views
        self._bus = bus
        self._channels: dict[tuple[str, str], LossyChannel] = {}
        self._feeds: dict[tuple[str, str], set[Feed]] = {}

    def lost(self, tenant: str, conversation_id: str) -> None:
        """A log was found damaged: what this process keeps of it, and what its clients have, may be gone."""
        self.views.forget(tenant, conversation_id)
        for feed in tuple(self._feeds.get((tenant, conversation_id), ())):
            feed.lose("the log is damaged: what was stored of it may be gone")

    async def feed(
        self,
        tenant: str,
        conversation_id: str,
        *,
        after_seq: int | None,
        log_epoch: str | None,
        detail: Detail,
        sink: Sink,
    ) -> Feed:
        """A subscription, not yet followed.

        Args:
            tenant: Who owns the conversation; the caller has checked that it exists.
            conversation_id: Which one.
            after_seq: The last event that the client has; 0 for none, None for only what is new.
            log_epoch: Of the log that `after_seq` belongs to, when the client knows it.
            detail: How much it wants to see.
            sink: Where frames go.

        Raises:
            OutOfReach: the position belongs to another log, or to events that are not stored.
        """
        view = await self.views.read(tenant, conversation_id)
        _check_position(conversation_id, view, after_seq, log_epoch)
        return Feed(self, tenant, conversation_id, view, after_seq=after_seq, detail=detail, sink=sink)

    async def join(self, feed: Feed) -> LossyChannel:
        """Give a feed the deltas of its conversation."""
        key = (feed.tenant, feed.conversation_id)
        channel = self._channels.setdefault(key, LossyChannel(self._bus, *key))
        channel.feeds.add(feed)
        self._feeds.setdefault(key, set()).add(feed)
        await channel.listen()
        return channel

    async def leave(self, channel: LossyChannel, feed: Feed) -> None:
        """Take a feed off; the last one ends the subscriptions."""
        channel.feeds.discard(feed)
        feeds = self._feeds.get(channel.key, set())
        feeds.discard(feed)
        if not feeds:
            self._feeds.pop(channel.key, None)
        if not channel.feeds and self._channels.get(channel.key) is channel:
            del self._channels[channel.key]
        await channel.listen()


def _check_position(
    conversation_id: str, view: ConversationView, after_seq: int | None, log_epoch: str | None
) -> None:
    if log_epoch and log_epoch != view.log_epoch:
        reason = "the log was restored from a backup: positions in the earlier one do not count"
        raise OutOfReach(conversation_id, view.oldest_seq, reason)
    if after_seq is not None and after_seq > view.last_seq:
        reason = f"after_seq {after_seq} is beyond the last event, {view.last_seq}"
        raise OutOfReach(conversation_id, view.oldest_seq, reason)
    if after_seq and after_seq < view.oldest_seq - 1:
        reason = f"events up to {view.oldest_seq - 1} are no longer stored"
        raise OutOfReach(conversation_id, view.oldest_seq, reason)
