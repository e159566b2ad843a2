"""Deletes conversations that were not used for the retention time of their tenant.

The stream of the index has the last record of each conversation in the order of writing. A walk through it
therefore ends at the first record that is too young for every tenant, and reads no newer ones. Every gateway
walks: two requests for the same deletion have the effect of one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client import Counter

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import CONVERSATIONS, RUNS, kv_stream, kv_subject
from banksman.bus.storage.kv import is_marker
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.subjects import ANY
from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import Caller
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


async def build(base: Foundation) -> None:
    services = base.services
    retention = Retention(
        base.bus,
        services[Conversations],
        services[Views],
        services[ConversationChanges],
        base.clock,
        base.settings.tenants,
    )
    if retention.shortest():
        await base.stack.enter_async_context(base.bus.background.running("retention", retention.run))


FEATURE = Feature(build=build)
