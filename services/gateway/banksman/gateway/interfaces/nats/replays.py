"""Send the events of a conversation over NATS, as the frames of the websocket."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Received
from banksman.bus.messages import Message
from banksman.contracts.api import Replay
from banksman.contracts.errors import Overloaded
from banksman.contracts.event_frames import is_shown
from banksman.contracts.frames import ResyncRequired
from banksman.gateway.interfaces.nats.endpoints import Endpoints, named_by, tenant_of
from banksman.gateway.live.event_frames import encoded_event
from banksman.gateway.live.feed import Feed
from banksman.gateway.live.feeds import PositionUnavailable
from banksman.gateway.live.send_buffer import Outbox
from banksman.gateway.operation.declaration import MISSING
from banksman.gateway.service.gateway import Gateway

EVENTS_PER_FLUSH = 500
"""Events that a replay publishes before it waits for the broker, which bounds what the broker must buffer."""
MAX_FOLLOWING = 32
"""Conversations that one tenant may follow at a gateway: half of the requests that it handles at a time."""


@dataclass
class Replays:
    """Sends stored events, and on request the events that are stored afterwards."""

    bus: Bus
    gateway: Gateway
    _following: Counter[str] = field(default_factory=lambda: Counter[str]())
    """By tenant."""
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """End the replays that follow conversations when the process stops; clients repeat their requests."""
        self._ending.set()

    async def send(self, request: Replay, message: Message) -> None:
        """Send the events to the reply subject, then an empty message.

        Raises:
            NotFound: This tenant has no such conversation.
            Overloaded: The tenant follows as many conversations as it may.
        """
        if not message.reply:
            return
        await self.gateway.conversations.get(tenant_of(message), named_by(message))
        if request.follow_s:
            await self._follow(request, message)
        else:
            await self._stored(request, message)
        await self.bus.publish(message.reply, b"")

    async def _stored(self, request: Replay, message: Message) -> None:
        tenant, conversation_id = tenant_of(message), named_by(message)
        page = await self.gateway.views.events(tenant, conversation_id, after_seq=request.after_seq)
        last = request.after_seq
        shown = (event for event in page.events if is_shown(event.data.type, request.detail))
        for sent, event in enumerate(shown, 1):
            frame = encoded_event(event, conversation_id, page.log_epoch, last)
            await self.bus.publish(message.reply, frame.encode())
            last = event.seq
            if sent % EVENTS_PER_FLUSH == 0:
                await self.bus.ready()

    async def _follow(self, request: Replay, message: Message) -> None:
        tenant = tenant_of(message)
        if self._following[tenant] >= MAX_FOLLOWING:
            raise Overloaded(f"more than {MAX_FOLLOWING} conversations are followed")
        self._following[tenant] += 1
        try:
            outbox = Outbox()
            feed = await self._feed(request, message, outbox)
            if feed is not None:
                await self._publish_feed(feed, outbox, message.reply, request.follow_s)
        finally:
            self._following[tenant] -= 1

    async def _feed(self, request: Replay, message: Message, outbox: Outbox) -> Feed | None:
        """Return the feed of a request; None if its position does not exist, after `resync_required`."""
        try:
            return await self.gateway.feeds.open(
                tenant_of(message),
                named_by(message),
                after_seq=request.after_seq,
                log_epoch=request.log_epoch,
                detail=request.detail,
                sink=outbox,
            )
        except PositionUnavailable as error:
            resync = ResyncRequired(
                conversation_id=error.conversation_id, oldest_seq=error.oldest_seq, reason=error.reason
            )
            await self.bus.publish(message.reply, resync.model_dump_json().encode())
            return None

    async def _publish_feed(self, feed: Feed, outbox: Outbox, reply: str, follow_s: float) -> None:
        """Publish the frames of a feed until `follow_s` ends, the process stops or the queue overflows."""

        async def publish() -> None:
            for sent in count(1):
                await self.bus.publish(reply, (await outbox.next()).encode())
                if sent % EVENTS_PER_FLUSH == 0:
                    await self.bus.ready()

        works = [feed.follow(), publish(), self._ending.wait(), outbox.overflowed.wait()]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks[1:], timeout=follow_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await feed.close()
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


def add_replays(api: Endpoints, replays: Replays) -> None:
    """Serve replays, which answer by a stream of messages instead of one reply."""

    @api.serve("replay", "{conversation_id}", errors=(MISSING,))
    async def replay(request: Replay, message: Received) -> None:
        """Send the events to the reply subject, each as a frame; an empty message ends them."""
        await replays.send(request, message)
