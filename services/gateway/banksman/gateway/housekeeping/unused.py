"""Deletes unused conversations, or lets agents archive them: at an age, or while the logs are nearly full.

The stream of the index has the last record of each conversation in the order of writing. A walk through it
therefore ends at the first record that is too young for every tenant, and reads no newer ones. Every gateway
walks: two requests for the same deletion, or to archive the same commits, have the effect of one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import Counter

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import CONVERSATIONS, EVENTS, RUNS, kv_stream, kv_subject
from banksman.bus.publish import RunQueue
from banksman.bus.storage.kv import is_marker
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.subjects import ANY
from banksman.contracts.work import ArchiveConversation
from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import Caller
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.settings import GatewaySettings
from banksman.quotas.stored import StorageRoom
from banksman.runs.ports import Clock
from banksman.runtime.tenants import TenantSettings

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Seconds of pause after each conversation that was read, with at most ten requests."""
WALK_EVERY_S = 3600.0
"""Seconds from the end of a walk to the beginning of the next one."""
USER = "retention"
"""The user whom the events of a deletion name."""

_EXPIRED = Counter("banksman_expired_conversations", "Conversations deleted because they were not used.")


@dataclass(frozen=True, slots=True)
class Retention:
    bus: Bus
    conversations: Conversations
    views: Views
    changes: ConversationChanges
    clock: Clock
    tenants: TenantSettings
    pause_s: float = PAUSE_S

    async def run(self) -> None:
        while True:
            await self.walk()
            await asyncio.sleep(WALK_EVERY_S)

    async def walk(self) -> None:
        for tenant, shortest in self.shortest().items():
            await self._walk(kv_subject(CONVERSATIONS, f"{tenant}.{ANY}"), shortest)

    def shortest(self) -> dict[str, timedelta]:
        """Return the retention by tenant; with a default retention, only the shortest of all, under `*`."""
        known = ((tenant, self._retention_of(tenant)) for tenant in self.tenants.named)
        named = {tenant: retention for tenant, retention in known if retention}
        default = self.tenants.default.retention_days
        if not default:
            return named
        return {ANY: min([timedelta(days=default), *named.values()])}

    def _retention_of(self, tenant: str) -> timedelta | None:
        days = self.tenants.of(tenant).retention_days
        return timedelta(days=days) if days else None

    async def _walk(self, subject: str, shortest: timedelta) -> None:
        async for message in jetstream.read(self.bus, kv_stream(CONVERSATIONS), subject):
            stored_at = datetime.fromisoformat(message.time)
            if self.clock.now() - stored_at < shortest:
                return
            _, _, tenant, conversation_id = message.subject.split(".")
            retention = self._retention_of(tenant)
            # Messages, renames and marks write the record, so it states when the conversation was last used.
            if retention is None or is_marker(message) or self.clock.now() - stored_at < retention:
                continue
            try:
                await self._delete_expired(tenant, conversation_id, retention)
            except NotFound:
                # A user or another gateway has deleted it meanwhile.
                pass
            except BanksmanError as error:
                logger.warning("%s may have expired, but was not deleted: %s", conversation_id, error)
            await asyncio.sleep(self.pause_s)

    async def _delete_expired(self, tenant: str, conversation_id: str, retention: timedelta) -> None:
        record = await self.conversations.get(tenant, conversation_id)
        if record.pinned:
            return
        if damage := self.views.damage(tenant, conversation_id):
            raise damage
        view = await self.views.read(tenant, conversation_id)
        # An interrupted deletion continues, although its tombstone is young.
        if not view.deleted:
            used_at = datetime.fromisoformat(record.updated_at)
            used_at = max(used_at, view.last_ts or used_at)
            if view.open_run is not None or self.clock.now() - used_at < retention:
                return
            # The log does not contain runs that no agent has started yet.
            if await jetstream.count_below(self.bus, RUNS, subjects.run_work(tenant, conversation_id)):
                return
        await self.changes.delete(Caller(tenant, USER), conversation_id)
        _EXPIRED.inc()
        logger.info(
            "an unused conversation is deleted", extra={"tenant": tenant, "conversation_id": conversation_id}
        )


logger = logging.getLogger(__name__)

SEARCH_EVERY_S = 600.0
"""Seconds from the end of a search to the beginning of the next one."""
HANDLED_S: Final = 30.0
"""Seconds to wait for an agent before the search goes on: agents get one conversation at a time."""
POLL_S: Final = 0.1
LEAST_DAYS: Final = 1.0
"""Days without activity before a conversation is archived because the logs are nearly full."""


@dataclass(slots=True)
class Archiving:
    """Continues where an earlier search ended, because a message rewrites the record."""

    log: EventLog
    queue: RunQueue
    storage: StorageRoom
    clock: Clock
    settings: GatewaySettings
    done: int = 0
    """Sequence of the record up to which all conversations are archived."""

    async def run(self) -> None:
        while True:
            await self.search()
            await asyncio.sleep(SEARCH_EVERY_S)

    async def search(self) -> None:
        stream, subject = kv_stream(CONVERSATIONS), kv_subject(CONVERSATIONS, ">")
        gapless = True
        async for message in jetstream.read(self.log.bus, stream, subject, after=self.done):
            unused_since = await self._unused_since()
            if unused_since is None or datetime.fromisoformat(message.time) > unused_since:
                return
            _, _, tenant, conversation_id = message.subject.split(".")
            archived = is_marker(message) or await self._archive(tenant, conversation_id, unused_since)
            gapless = gapless and archived
            self.done = message.stream_seq if gapless else self.done

    async def _unused_since(self) -> datetime | None:
        """Return the time before which conversations are archived; None if none is."""
        days = [self.settings.archive_days] if self.settings.archive_days else []
        use = await self.storage.use(EVENTS) if self.settings.archive_above_percent else None
        if use and use.held_bytes * 100 > use.max_bytes * self.settings.archive_above_percent:
            days.append(LEAST_DAYS)
        return self.clock.now() - timedelta(days=min(days)) if days else None

    async def _archive(self, tenant: str, conversation_id: str, unused_since: datetime) -> bool:
        """Let an agent archive a conversation; return whether it is archived now."""
        try:
            last = await self.log.last(tenant, conversation_id)
            if last is None or last.commit.archive is not None:
                return True
            if last.commit.ts > unused_since:
                return False
            signal = ArchiveConversation(
                tenant=tenant, conversation_id=conversation_id, unused_since=unused_since
            )
            await self.queue.signal(signal, f"archive-{conversation_id}-{last.stream_seq}")
            await self._handled(tenant, conversation_id)
            last = await self.log.last(tenant, conversation_id)
            return last is None or last.commit.archive is not None
        except (BanksmanError, TimeoutError) as error:
            logger.info("%s is not archived yet: %s", conversation_id, error or "no agent did it")
            return False

    async def _handled(self, tenant: str, conversation_id: str) -> None:
        subject = subjects.run_signal(tenant, conversation_id)
        async with asyncio.timeout(HANDLED_S):
            while True:
                await asyncio.sleep(POLL_S)
                if not await jetstream.count_below(self.log.bus, RUNS, subject):
                    return


async def build(base: Foundation) -> None:
    services, settings, clock = base.services, base.settings.gateway, base.clock
    enter, background = base.stack.enter_async_context, base.bus.background
    index, views, changes = services[Conversations], services[Views], services[ConversationChanges]
    retention = Retention(base.bus, index, views, changes, clock, base.settings.tenants)
    if retention.shortest():
        await enter(background.running("retention", retention.run))
    storage = services[Backlog].logs.storage
    archiving = Archiving(views.log, services[RunQueue], storage, clock, settings)
    if settings.archive_days or settings.archive_above_percent:
        await enter(background.running("archive", archiving.run))


FEATURE = Feature(build=build)
