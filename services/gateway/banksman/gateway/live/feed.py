"""One subscription of one client to one conversation: stored events without gaps, and live output.

Live output is not stored and may be lost: deltas and the progress of tool calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from prometheus_client import Counter
from pydantic import ValidationError
from pydantic_core import to_json

from banksman.bus.connection import Bus
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.secrets import is_of_holder
from banksman.bus.storage.live import Following, LiveHub
from banksman.bus.storage.log import StoredCommit
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress
from banksman.contracts.errors import Unavailable
from banksman.contracts.event_frames import is_shown
from banksman.contracts.events import (
    Event,
    IterationStarted,
    MessageCompleted,
    RunFinished,
    ToolCallCompleted,
)
from banksman.contracts.frames import Detail, ReplayDone, ResyncRequired
from banksman.contracts.live_output import Delta, ModelWaiting, live_output
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.live.event_frames import encoded_event, subscribed
from banksman.gateway.operation.caller import Caller

logger = logging.getLogger(__name__)

READ_AGAIN_S = 0.5
"""Seconds before stored events are read again after the broker did not respond."""
_FOREIGN = Counter(
    "banksman_foreign_live_output", "Live output dropped because its sender does not hold the call."
)
REPEATED_WITHIN_S = 2.0
"""Seconds that a feed waits for the text from its beginning before it sends pieces from its middle."""
EARLY_OUTPUT = 4_096
"""Pieces of live output that may wait until the stored events before them are sent."""


HIDDEN = "the conversation is limited to other people"
"""Why the feed of a caller ends who may no longer see the conversation."""

LiveOutput = Delta | ModelWaiting | CallProgress

ENDED_CALLS = 256
"""The last calls that have ended: their holders may no longer publish output."""


class Sink(Protocol):
    def put(self, *frames: str) -> None:
        """Accept the frames of one commit, or one other frame."""
        ...

    def put_delta(self, key: tuple[str, ...], frame: dict[str, Any]) -> None:
        """Accept a piece of text, which may be merged with the piece before it."""
        ...

    async def room(self) -> None: ...


class ConversationFeed:
    def __init__(
        self,
        hub: LiveHub,
        channels: LiveChannels,
        caller: Caller,
        conversation_id: str,
        view: ConversationView,
        after_seq: int | None,
        detail: Detail,
        sink: Sink,
        hides: Callable[[Caller, str], bool],
    ) -> None:
        self.caller = caller
        self.tenant = caller.tenant
        self.conversation_id = conversation_id
        self.head = subscribed(conversation_id, view)
        self.ended = asyncio.Event()
        """Set when no event follows: the run that `only` named has ended, or the events cannot be read."""
        self._hub = hub
        self._channels = channels
        self._sink = sink
        self._hides = hides
        self._detail: Detail = detail
        self._last = view.last_seq if after_seq is None else after_seq
        """Number of the last event that was sent or filtered out."""
        self._prev = self._last
        """Number of the last event sent."""
        self._position = view.stream_seq if after_seq is None else view.position(after_seq)
        # A restored log also contains commits of earlier epochs. Clients know only the current epoch, so all
        # events up to the head are sent with the current epoch.
        self._log_epoch, self._head = view.log_epoch, view.stream_seq
        self._completed_message: str | None = None
        self._run_id: str | None = None
        self._closed = False
        self._following: Following | None = None
        self._channel: LiveChannel | None = None
        self._early: deque[LiveOutput] | None = deque(maxlen=EARLY_OUTPUT)
        """Live output that arrived before the stored events that precede it; None once the feed is live."""
        self._completed: set[str] = set()
        """Messages and calls that the replayed events complete: their early output is dropped."""

        self._ended_calls = deque[str](maxlen=ENDED_CALLS)
        active = self.head.active_run or {}
        self._writing = active.get("status") == "running"
        """Whether a model may be writing a message, as far as the stored events show it."""
        self._repeated_by = float("-inf")
        self._shown: dict[str, tuple[str, int]] = {}
        """The message of the last delta of each kind, and how many of its first characters were sent."""

    async def listen(self) -> None:
        """Begin to buffer live output, so that `follow` misses no output after this call."""
        if self._channel is None:
            self._channel = await self._channels.join(self.tenant, self.conversation_id, self)
            # Its people may have changed since the feed was opened, when the channel did not have it.
            self.end_if_hidden()

    async def follow(self, *, quiet: bool = False) -> None:
        """Send the stored events, then `replay.done`, then each event as it is stored, until `close`.

        Returns when the feed is live; callbacks send further frames. Retries while the broker does not
        respond: the client has its position already, and could not detect missing events. `quiet` sends no
        `replay.done`. Raises `LogBroken` or `Poison` if the log cannot be read.
        """
        while not self._closed:
            try:
                await self._go_live(quiet=quiet)
                break
            except Unavailable as error:
                logger.warning("%s: reading the log failed, retrying: %s", self.conversation_id, error)
                await asyncio.sleep(READ_AGAIN_S)

    async def _go_live(self, *, quiet: bool) -> None:
        await self.listen()
        if self._closed:
            return
        for stored in await self._hub.log.read(self.tenant, self.conversation_id, after=self._position):
            await self._sink.room()
            if self._closed:
                return
            self._take(stored)
        self._following = await self._hub.follow(
            self.tenant, self.conversation_id, after_stream_seq=self._position, on_commit=self._take
        )
        if self._writing:
            self._repeated_by = asyncio.get_running_loop().time() + REPEATED_WITHIN_S
        self._show_early()
        if self._writing:
            await self._hub.log.bus.publish(subjects.delta_wanted(self.tenant, self.conversation_id), b"")
        if not quiet:
            done = ReplayDone(conversation_id=self.conversation_id, seq=self._last)
            self._sink.put(done.model_dump_json())

    def end_if_hidden(self) -> None:
        if self._hides(self.caller, self.conversation_id):
            self.require_resync(HIDDEN)

    def require_resync(self, reason: str) -> None:
        """Send `resync_required` as the last frame: the client's events differ from the stored ones."""
        if self._closed:
            return
        self._closed = True
        self.ended.set()
        self._sink.put(self.resync(reason))

    def resync(self, reason: str) -> str:
        """Return the frame that ends a stream before its end, encoded."""
        resync = ResyncRequired(
            conversation_id=self.conversation_id, oldest_seq=self.head.oldest_seq, reason=reason
        )
        return resync.model_dump_json()

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            await self._channels.leave(self._channel, self)
            self._channel = None
        if self._following is not None:
            await self._following.close()
            self._following = None

    @property
    def shows_progress(self) -> bool:
        return is_shown("tool_call.started", self._detail)

    def only(self, run_id: str) -> None:
        self._run_id = run_id

    def take(self, live: LiveOutput) -> None:
        """Send a piece of a message or the progress of a tool call, or buffer it until the feed is live."""
        if self._closed:
            return
        if self._early is not None:
            self._early.append(live)
        else:
            self._show(live)

    def _show_early(self) -> None:
        early, self._early = () if self._closed else self._early or (), None
        for live in early:
            subject = live.tool_call_id if isinstance(live, CallProgress) else live.message_id
            if subject not in self._completed:
                self._show(live)
        self._completed.clear()

    def _show(self, live: LiveOutput) -> None:
        if self._run_id not in (None, live.run_id):
            return
        match live:
            case Delta():
                self._show_delta(live)
            case ModelWaiting():
                self._show_waiting(live)
            case CallProgress():
                self._show_progress(live)

    def _show_delta(self, delta: Delta) -> None:
        kind = f"{delta.kind}.delta"
        if delta.message_id == self._completed_message or not is_shown(kind, self._detail):
            return
        message_id, sent = self._shown.get(delta.kind, ("", 0))
        sent = sent if message_id == delta.message_id else 0
        end = delta.offset + len(delta.text)
        if delta.repeated and end <= sent:
            return
        # The repetition contains it, and clients would see a gap before.
        if delta.offset > sent and asyncio.get_running_loop().time() < self._repeated_by:
            return
        if delta.offset <= sent:
            self._shown[delta.kind] = (delta.message_id, end)
        data: dict[str, Any] = {"message_id": delta.message_id, "offset": delta.offset, "text": delta.text}
        frame = self._live_frame(kind, delta.run_id, data)
        self._sink.put_delta((self.conversation_id, delta.kind, delta.message_id), frame)

    def _show_waiting(self, notice: ModelWaiting) -> None:
        if notice.message_id != self._completed_message and is_shown("model.waiting", self._detail):
            data = notice.pause.model_dump()
            self._sink.put(to_json(self._live_frame("model.waiting", notice.run_id, data)).decode())

    def _show_progress(self, progress: CallProgress) -> None:
        if progress.tool_call_id in self._ended_calls:
            return
        data: dict[str, Any] = {"tool_call_id": progress.tool_call_id}
        if progress.kind == "started":
            data["runner"] = progress.runner
            self._sink.put(to_json(self._live_frame("tool_call.started", progress.run_id, data)).decode())
        elif is_shown("tool_call.output", self._detail):
            data |= {"stream": progress.stream, "text": progress.text}
            frame = self._live_frame("tool_call.output", progress.run_id, data)
            key = (self.conversation_id, "output", progress.tool_call_id, progress.stream or "")
            self._sink.put_delta(key, frame)

    def _take(self, stored: StoredCommit) -> None:
        """Send the events of a commit that the client has not received yet."""
        self._position = stored.stream_seq
        log_epoch = self._log_epoch if stored.stream_seq <= self._head else stored.commit.log_epoch
        frames: list[str] = []
        for event in stored.commit.events:
            if event.seq <= self._last or self._closed:
                continue
            self._last = event.seq
            self._note_completion(event)
            if self._run_id not in (None, event.run_id) or not is_shown(event.data.type, self._detail):
                continue
            frames.append(encoded_event(event, self.conversation_id, log_epoch, self._prev))
            self._prev = event.seq
            if self._run_id is not None and isinstance(event.data, RunFinished):
                self.ended.set()
        if frames:
            self._sink.put(*frames)

    def _note_completion(self, event: Event) -> None:
        """Record the message or call that an event completes: its live output is not sent afterwards."""
        match event.data:
            case IterationStarted():
                self._writing = True
                return
            case RunFinished():
                self._writing = False
                return
            case MessageCompleted(message_id=completed, role=role):
                self._completed_message = completed
                self._writing = self._writing and role == "user"
            case ToolCallCompleted(result=result):
                completed = result.tool_call_id
                self._ended_calls.append(completed)
            case _:
                return
        if self._early is not None:
            self._completed.add(completed)

    def _live_frame(self, kind: str, run_id: str, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": kind,
            "ts": datetime.now(UTC).isoformat(),
            "conversation_id": self.conversation_id,
            "run_id": run_id,
            "data": data,
        }


@dataclass(eq=False)
class LiveChannel:
    """The core subscriptions of one conversation: deltas, and progress while a feed shows it."""

    bus: Bus
    key: tuple[str, str]
    """Tenant and conversation."""
    signing_key: bytes = field(repr=False)
    feeds: set[ConversationFeed] = field(default_factory=set[ConversationFeed])
    _open: dict[str, BusSubscription] = field(default_factory=dict[str, BusSubscription])
    # Subscribing waits for the server: two concurrent updates would subscribe twice.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def update(self) -> None:
        """Subscribe to the subjects that the feeds need, and unsubscribe from the others."""
        async with self._turn:
            await self._subscribe(bool(self.feeds), subjects.delta(*self.key), live_output)
            wanted = any(feed.shows_progress for feed in self.feeds)
            await self._subscribe(wanted, subjects.tool_progress(*self.key), CallProgress.model_validate_json)

    async def _subscribe(self, wanted: bool, subject: str, decoded: Callable[[bytes], LiveOutput]) -> None:
        if wanted and subject not in self._open:
            # Without a task: the commit that completes a message is delivered on arrival, and would overtake
            # deltas that wait for theirs.
            self._open[subject] = await self.bus.listen(subject, partial(self._receive, decoded))
        elif not wanted and subject in self._open:
            await self._open.pop(subject).unsubscribe()

    def _receive(self, decoded: Callable[[bytes], LiveOutput], message: Message) -> None:
        with contextlib.suppress(ValidationError):
            live = decoded(message.data)
            # Any runner's key may publish to this subject.
            if isinstance(live, CallProgress) and not self._is_genuine(live):
                _FOREIGN.inc()
                return
            for feed in tuple(self.feeds):
                if feed.shows_progress or not isinstance(live, CallProgress):
                    feed.take(live)

    def _is_genuine(self, progress: CallProgress) -> bool:
        tenant, conversation_id = self.key
        ours = progress.conversation_id == conversation_id
        return ours and is_of_holder(progress, self.signing_key, tenant)


class LiveChannels:
    """The channels of all open conversations: one for each, however many feeds it has."""

    def __init__(self, bus: Bus, signing_key: bytes) -> None:
        self._bus = bus
        self._signing_key = signing_key
        self._channels: dict[tuple[str, str], LiveChannel] = {}

    async def join(self, tenant: str, conversation_id: str, feed: ConversationFeed) -> LiveChannel:
        key = tenant, conversation_id
        channel = self._channels.setdefault(key, LiveChannel(self._bus, key, self._signing_key))
        channel.feeds.add(feed)
        await channel.update()
        return channel

    def feeds(self, tenant: str, conversation_id: str) -> tuple[ConversationFeed, ...]:
        channel = self._channels.get((tenant, conversation_id))
        return () if channel is None else tuple(channel.feeds)

    async def leave(self, channel: LiveChannel, feed: ConversationFeed) -> None:
        channel.feeds.discard(feed)
        if not channel.feeds and self._channels.get(channel.key) is channel:
            del self._channels[channel.key]
        await channel.update()
