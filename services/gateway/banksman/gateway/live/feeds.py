"""All feeds of a process. Each open conversation is subscribed once, however many feeds it has."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog
from banksman.contracts.errors import NotFound
from banksman.contracts.frames import Detail, ResyncRequired
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.people import LimitedConversations
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.live.feed import ConversationFeed, LiveChannels, Sink
from banksman.gateway.operation.caller import Caller


class PositionUnavailable(Exception):
    """The events after a client's position cannot be sent: the client must read the conversation again."""

    def __init__(self, conversation_id: str, oldest_seq: int, reason: str) -> None:
        self.frame = ResyncRequired(conversation_id=conversation_id, oldest_seq=oldest_seq, reason=reason)
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Feeds:
    hub: LiveHub
    views: Views
    conversations: Conversations
    channels: LiveChannels

    async def open(
        self,
        caller: Caller,
        conversation_id: str,
        *,
        after_seq: int | None,
        log_epoch: str | None = None,
        newest_runs: int | None = None,
        detail: Detail,
        sink: Sink,
    ) -> ConversationFeed:
        """Return a feed, which sends frames once its `follow` is called.

        Args:
            after_seq: The last event that the client has; 0 for none, None for new events only.
            log_epoch: The epoch of the log that `after_seq` belongs to, if the client knows it.
            newest_runs: The number of runs before which stored events are left out; None for all runs.

        Raises `PositionUnavailable` if the position belongs to another log, or to events that are not stored.
        """
        tenant, limited = caller.tenant, self.conversations.limited
        if limited.hides(caller, conversation_id):
            raise NotFound("conversation", conversation_id)
        await self.conversations.get(tenant, conversation_id)
        view = await self.views.as_sent(tenant, conversation_id)
        if reason := _problem(view, after_seq, log_epoch):
            raise PositionUnavailable(conversation_id, view.oldest_seq, reason)
        if newest_runs and after_seq is not None:
            after_seq = max(after_seq, view.before_newest(newest_runs))
        feed = ConversationFeed(
            self.hub, self.channels, caller, conversation_id, view, after_seq, detail, sink, limited.hides
        )
        if newest_runs:
            feed.head = feed.head.model_copy(update={"after_seq": after_seq})
        return feed

    def on_people(self, tenant: str, conversation_id: str) -> None:
        """End the feeds of those who may no longer see a conversation."""
        for feed in self.channels.feeds(tenant, conversation_id):
            feed.end_if_hidden()

    def on_damage(self, tenant: str, conversation_id: str) -> None:
        """Drop the view of a damaged log, and require its clients to resync: events may be lost."""
        self.views.forget(tenant, conversation_id)
        for feed in self.channels.feeds(tenant, conversation_id):
            feed.require_resync("the log is damaged: stored events may be lost")


def _problem(view: ConversationView, after_seq: int | None, log_epoch: str | None) -> str | None:
    """Return why the events after a position cannot be sent; None if they can."""
    if log_epoch and log_epoch != view.log_epoch:
        return "the log was restored from a backup: positions in the earlier log are invalid"
    if after_seq is not None and after_seq > view.last_seq:
        return f"after_seq {after_seq} is beyond the last event, {view.last_seq}"
    if after_seq and after_seq < view.oldest_seq - 1:
        return f"events up to {view.oldest_seq - 1} are no longer stored"
    return None


async def build(base: Foundation) -> None:
    log = EventLog(base.bus)
    hub = await base.stack.enter_async_context(LiveHub(log))
    views = Views(log, damaged=base.damaged)
    limited = LimitedConversations(base.bus, base.clock)
    conversations = Conversations(base.bus, views, base.clock, limited)
    feeds = Feeds(hub, views, conversations, LiveChannels(base.bus, base.settings.approvals.key()))
    base.damaged.on_found = feeds.on_damage
    limited.on_change = feeds.on_people
    await base.stack.enter_async_context(limited.view)
    base.dispatcher.visibility = limited
    base.services.add(hub, views, conversations, limited, CreatedConversations(), feeds)


FEATURE = Feature(build=build)
