"""Builds the conversations, their logs as clients see them, and their runs."""

from __future__ import annotations

from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.runs import Runs
from banksman.gateway.conversations.search import Search
from banksman.gateway.conversations.search_operations import operations as search_operations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.live.feeds import Feeds


async def build(base: Foundation) -> None:
    """Build what reads conversations, and the feeds that clients follow."""
    log = EventLog(base.bus)
    hub = await base.stack.enter_async_context(LiveHub(log))
    views = Views(log, damaged=base.damaged)
    conversations = Conversations(base.bus, views, base.clock)
    feeds = Feeds(base.bus, hub, views)
    base.damaged.on_found = feeds.on_damage
    base.services.add(
        views,
        conversations,
        CreatedConversations(),
        Runs(base.bus, hub, views, conversations),
        Search(base.bus, conversations),
        feeds,
    )


FEATURE = Feature(search_operations, build)
