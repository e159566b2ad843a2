"""Send the events of a conversation over NATS, as the frames of the websocket."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Received
from banksman.contracts.errors import Overloaded
from banksman.contracts.event_frames import is_shown
from banksman.contracts.frames import Draining, Replay
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.live.event_frames import encoded_event
from banksman.gateway.live.feed import ConversationFeed
from banksman.gateway.live.feeds import Feeds, PositionUnavailable
from banksman.gateway.live.followed_runs import TOO_SLOW
from banksman.gateway.live.send_buffer import Outbox
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided

EVENTS_PER_FLUSH = 500
"""Events that a replay publishes before it waits for the broker, which bounds what the broker must buffer."""
MAX_FOLLOWING = 32
"""Conversations that one tenant may follow at a gateway: half of the requests that it handles at a time."""


@dataclass
class Replays:
    """Sends stored events, and on request the events that are stored afterwards."""

    bus: Bus
    feeds: Feeds
    views: Views
    conversations: Conversations
    _following: Counter[str] = field(default_factory=lambda: Counter[str]())
    """By tenant."""
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """End the replays that follow conversations when the process stops; clients repeat their requests."""
        self._ending.set()

    async def send(self, caller: Caller, conversation_id: str, request: Replay, reply: str) -> None:
        """Send the events to a reply subject, then an empty message; raise `LogDamaged` if some are lost."""
        if request.follow_s:
            await self._follow(caller, conversation_id, request, reply)
        else:
            await self._stored(caller, conversation_id, request, reply)
        if damage := self.views.damage(caller.tenant, conversation_id):
            raise damage
        await self.bus.publish(reply, b"")

    async def _stored(self, caller: Caller, conversation_id: str, request: Replay, reply: str) -> None:
        await self.conversations.get(caller.tenant, conversation_id)
        page = await self.views.events(caller.tenant, conversation_id, after_seq=request.after_seq)
        last = request.after_seq
        shown = (event for event in page.events if is_shown(event.data.type, request.detail))
        for sent, event in enumerate(shown, 1):
            frame = encoded_event(event, conversation_id, page.log_epoch, last)
            await self.bus.publish(reply, frame.encode())
            last = event.seq
            if sent % EVENTS_PER_FLUSH == 0:
                await self.bus.ready()

    async def _follow(self, caller: Caller, conversation_id: str, request: Replay, reply: str) -> None:
        if self._following[caller.tenant] >= MAX_FOLLOWING:
            raise Overloaded(f"more than {MAX_FOLLOWING} conversations are followed")
        self._following[caller.tenant] += 1
        outbox = Outbox()
        try:
            feed = await self.feeds.open(
                caller,
                conversation_id,
                after_seq=request.after_seq,
                log_epoch=request.log_epoch,
                detail=request.detail,
                sink=outbox,
            )
            await self._publish_feed(feed, outbox, reply, request.follow_s)
        except PositionUnavailable as error:
            await self.bus.publish(reply, error.frame.model_dump_json().encode())
        finally:
            self._following[caller.tenant] -= 1

    async def _publish_feed(
        self, feed: ConversationFeed, outbox: Outbox, reply: str, follow_s: float
    ) -> None:
        """Publish the frames of a feed until `follow_s` ends, the process stops or the queue overflows.

        The last frame names each reason but the first.
        """

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
        if outbox.overflowed.is_set():
            await self.bus.publish(reply, feed.resync(TOO_SLOW).encode())
        elif self._ending.is_set():
            await self.bus.publish(reply, Draining(reconnect_after_s=0).model_dump_json().encode())


operations = Operations("conversations")


@operations.over_nats(
    "replay",
    "conversation_id",
    not_over_http="`conversation.events` lists the events; the websocket follows them",
)
async def replay(
    conversation_id: str,
    request: Replay,
    message: Received,
    replays: Annotated[Replays, provided(Replays)],
    caller: CallerDep,
) -> None:
    """Send the events to the reply subject, each as a frame; an empty message ends them."""
    if message.reply:
        await replays.send(caller, conversation_id, request, message.reply)


async def build(base: Foundation) -> None:
    services = base.services
    services.add(Replays(base.api, services[Feeds], services[Views], services[Conversations]))


FEATURE = Feature(operations, build)
