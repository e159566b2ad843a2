"""Runs whose events one HTTP response sends, in the format of its endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakSet

from banksman.contracts.errors import BanksmanError
from banksman.contracts.frames import Ack, ChatSend, Detail, RunCancel
from banksman.contracts.ids import new_id
from banksman.gateway.conversations.view import PARKED, ConversationView
from banksman.gateway.conversations.views import Views
from banksman.gateway.live.feed import ConversationFeed
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.send_buffer import Outbox
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.streaming import SSE_HEADERS, StreamedResponse, kept_alive

REASON = "The client closed the connection."
TOO_SLOW = "the client reads too slowly"
STOPPING = "the gateway stops; the run continues"


@dataclass(frozen=True, slots=True)
class FollowedRun:
    runs: FollowedRuns
    caller: Caller
    conversation_id: str
    run_id: str
    feed: ConversationFeed
    outbox: Outbox

    async def frames(self) -> AsyncGenerator[str]:
        """Yield the frames until the run ends.

        They end earlier, and with `resync_required`, if the events cannot be read, or if the client reads too
        slowly to receive them all.
        """
        following = asyncio.create_task(self._follow())
        try:
            while not (self.feed.ended.is_set() and self.outbox.empty):
                if self.outbox.overflowed.is_set():
                    yield self.feed.resync(TOO_SLOW)
                    return
                yield await self.outbox.next()
        finally:
            following.cancel()
            await asyncio.wait((following,))

    async def cancel(self) -> None:
        if not self.feed.ended.is_set():
            await self.runs.cancel_abandoned(self.caller, self.run_id)

    async def waits(self) -> bool:
        view = await self.runs.views.read(self.caller.tenant, self.conversation_id)
        found = view.runs.get(self.run_id)
        return found is not None and found.status in PARKED

    def stream(self, events: AsyncIterator[bytes]) -> StreamedResponse:
        """Return the response that sends events of this run. A client that disconnects cancels the run."""
        headers = {**SSE_HEADERS, **run_headers(self.conversation_id, self.run_id)}
        return StreamedResponse(
            kept_alive(events), headers=headers, on_disconnect=self.cancel, on_end=self.feed.close
        )

    async def _follow(self) -> None:
        try:
            await self.feed.follow(quiet=True)
        except BanksmanError as error:
            # No code awaits this task: without a frame the response would only send keep-alives.
            self.feed.require_resync(error.public)


def run_headers(conversation_id: str, run_id: str) -> dict[str, str]:
    return {
        "location": f"/context/runs/{run_id}",
        "banksman-run-id": run_id,
        "banksman-conversation-id": conversation_id,
    }


@dataclass(slots=True)
class FollowedRuns:
    dispatcher: Dispatcher
    feeds: Feeds
    views: Views
    stopping: asyncio.Event
    """Set when the process stops: streams and waits for runs end, and clients continue at another gateway."""
    _open: WeakSet[ConversationFeed] = field(default_factory=lambda: WeakSet[ConversationFeed]())

    def end(self) -> None:
        """End the streams and the waits for runs."""
        self.stopping.set()
        for feed in tuple(self._open):
            feed.require_resync(STOPPING)

    async def cancel_abandoned(self, caller: Caller, run_id: str) -> None:
        frame = RunCancel(type="run.cancel", id=new_id("disconnect-"), run_id=run_id, reason=REASON)
        await self.dispatcher.handle(caller, frame)

    async def start(self, caller: Caller, request: ChatSend, detail: Detail, **known: Any) -> FollowedRun:
        """Start a run and follow its events from the first one; `known` is as for `Dispatcher.handle`."""
        outbox = Outbox()
        early = await self.feeds.open(
            caller, request.conversation_id, after_seq=None, detail=detail, sink=outbox
        )
        # Before the start: an agent may send the first deltas before the start is acknowledged.
        await early.listen()
        try:
            ack: Ack = await self.dispatcher.handle(caller, request, **known)
            run_id = ack.run_id or ""
            feed = await self._from_first_event(caller, run_id, early, detail, outbox)
        except BaseException:
            await early.close()
            raise
        if feed is not early:
            await early.close()
        return self._followed(caller, request.conversation_id, run_id, feed, outbox)

    async def open_run(
        self, caller: Caller, conversation_id: str, run_id: str, after_seq: int, detail: Detail
    ) -> FollowedRun:
        """Follow the events of a run after an event of its conversation.

        Live output is buffered from here on. A caller that does not return the stream closes the feed.
        """
        outbox = Outbox()
        feed = await self.feeds.open(caller, conversation_id, after_seq=after_seq, detail=detail, sink=outbox)
        await feed.listen()
        return self._followed(caller, conversation_id, run_id, feed, outbox)

    def _followed(
        self, caller: Caller, conversation_id: str, run_id: str, feed: ConversationFeed, outbox: Outbox
    ) -> FollowedRun:
        feed.only(run_id)
        self._open.add(feed)
        if self.stopping.is_set():
            feed.require_resync(STOPPING)
        return FollowedRun(self, caller, conversation_id, run_id, feed, outbox)

    async def _from_first_event(
        self, caller: Caller, run_id: str, early: ConversationFeed, detail: Detail, outbox: Outbox
    ) -> ConversationFeed:
        """Return the feed to use: a repeated request may name a run whose events precede `early`."""
        view = await self.views.read(caller.tenant, early.conversation_id)
        run = view.runs.get(run_id)
        if run is None or run.first_seq > early.head.head_seq:
            return early
        return await self.feeds.open(
            caller, early.conversation_id, after_seq=run.first_seq - 1, detail=detail, sink=outbox
        )


@dataclass(slots=True)
class GrowingText:
    message_id: str
    sent: str = ""
    differs: bool = False
    """Whether a repeated model request wrote another text, which is sent when it is complete."""

    def new(self, offset: int, text: str) -> str:
        """Return the part of a delta that was not sent yet; empty if it does not continue the sent text."""
        known = self.sent[offset : offset + len(text)]
        self.differs = self.differs or offset > len(self.sent) or not text.startswith(known)
        added = "" if self.differs else text[len(known) :]
        self.sent += added
        return added

    def rest(self, content: str) -> str:
        """Return the unsent part of the complete text; all of it, after a blank line, if it differs."""
        if content.startswith(self.sent):
            return content[len(self.sent) :]
        return f"\n\n{content}" if self.sent else content


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The requests that waited for a user when a conversation was read."""

    seq: int
    """Number of the last event that was read. Requests up to it that are not in `ids` are decided."""
    ids: frozenset[str]

    @classmethod
    def of(cls, view: ConversationView) -> Self:
        return cls(view.last_seq, frozenset({*view.approvals, *view.inputs}))

    def waits(self, frame: dict[str, Any], request_id: str) -> bool:
        """Return whether the request of a frame may be open, as any request after the last read event may."""
        return frame["seq"] > self.seq or request_id in self.ids
