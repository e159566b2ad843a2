"""Lets agents archive conversations that were not used for a time, or earlier while the logs are nearly full.

The stream of the index has the last record of each conversation in the order of writing, so a search reads
the unused ones first. It continues where an earlier one ended, because a message rewrites the record. Every
gateway searches; the second signal for the same commits has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from banksman.bus import jetstream
from banksman.bus.names import CONVERSATIONS, EVENTS, RUNS, kv_stream, kv_subject
from banksman.bus.publish import RunQueue
from banksman.bus.storage.kv import is_marker
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError
from banksman.contracts.work import ArchiveConversation
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.settings import GatewaySettings
from banksman.quotas.stored import StorageRoom
from banksman.runs.ports import Clock

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
    services, settings = base.services, base.settings.gateway
    archiving = Archiving(
        services[Views].log, services[RunQueue], services[Backlog].logs.storage, base.clock, settings
    )
    if settings.archive_days or settings.archive_above_percent:
        await base.stack.enter_async_context(base.bus.background.running("archive", archiving.run))


FEATURE = Feature(build=build)
