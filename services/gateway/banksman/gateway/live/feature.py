"""Builds what reads the logs of conversations, and the feeds that clients follow."""

from __future__ import annotations

from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.followed_runs import FollowedRuns
from banksman.gateway.operation.declaration import Operations


async def build(base: Foundation) -> None:
    """Build the index of conversations, their views and their feeds."""
    log = EventLog(base.bus)
    hub = await base.stack.enter_async_context(LiveHub(log))
    views = Views(log, damaged=base.damaged)
    conversations = Conversations(base.bus, views, base.clock)
    feeds = Feeds(base.bus, hub, views, conversations)
    base.damaged.on_found = feeds.on_damage
    followed = FollowedRuns(base.dispatcher, feeds, views)
    base.services.add(hub, views, conversations, CreatedConversations(), feeds, followed)


FEATURE = Feature(Operations("conversations"), build)
