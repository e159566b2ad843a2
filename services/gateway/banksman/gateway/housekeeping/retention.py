"""Deletes conversations that were not used for the retention time of their tenant.

The stream of the index has the last record of each conversation in the order of writing. A walk through it
therefore ends at the first record that is too young for every tenant, and reads no newer ones. Every gateway
walks: two requests for the same deletion have the effect of one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from prometheus_client import Counter

from banksman.bus import direct, jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import CONVERSATIONS, RUNS, kv_stream, kv_subject
from banksman.bus.storage.kv import is_marker
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.subjects import ANY
from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
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


class Retention:
    """Deletes expired conversations; as a context manager, repeatedly if any tenant has a retention."""

    def __init__(
        self,
        bus: Bus,
        conversations: Conversations,
        views: Views,
        changes: ConversationChanges,
        clock: Clock,
        tenants: TenantSettings,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._bus = bus
        self._conversations = conversations
        self._views = views
        self._changes = changes
        self._clock = clock
        self._tenants = tenants
        self._pause_s = pause_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._shortest():
            await self._stack.enter_async_context(self._bus.background.running("retention", self.run))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def run(self) -> None:
        """Walk through the index repeatedly, with pauses; never returns."""
        while True:
            await self.walk()
            await asyncio.sleep(WALK_EVERY_S)

    async def walk(self) -> None:
        """Delete every conversation that has expired.

        Raises:
            Unavailable: The broker does not respond.
        """
        for tenant, shortest in self._shortest().items():
            await self._walk(kv_subject(CONVERSATIONS, f"{tenant}.{ANY}"), shortest)

    def _shortest(self) -> dict[str, timedelta]:
        """Return the retention by tenant; with a default retention, only the shortest of all, under `*`."""
        known = ((tenant, self._retention_of(tenant)) for tenant in self._tenants.named)
        named = {tenant: retention for tenant, retention in known if retention}
        default = self._tenants.default.retention_days
        if not default:
            return named
        return {ANY: min([timedelta(days=default), *named.values()])}

    def _retention_of(self, tenant: str) -> timedelta | None:
        days = self._tenants.of(tenant).retention_days
        return timedelta(days=days) if days else None

    async def _walk(self, subject: str, shortest: timedelta) -> None:
        async for message in direct.read(self._bus, kv_stream(CONVERSATIONS), subject):
            stored_at = datetime.fromisoformat(message.time)
            if self._clock.now() - stored_at < shortest:
                return
            _, _, tenant, conversation_id = message.subject.split(".")
            retention = self._retention_of(tenant)
            # Messages, renames and marks write the record, so it states when the conversation was last used.
            if retention is None or is_marker(message) or self._clock.now() - stored_at < retention:
                continue
            try:
                await self._delete_expired(tenant, conversation_id, retention)
            except NotFound:
                # A user or another gateway has deleted it meanwhile.
                pass
            except BanksmanError as error:
                logger.warning("%s may have expired, but was not deleted: %s", conversation_id, error)
            await asyncio.sleep(self._pause_s)

    async def _delete_expired(self, tenant: str, conversation_id: str, retention: timedelta) -> None:
        record = await self._conversations.get(tenant, conversation_id)
        if record.pinned:
            return
        if damage := self._views.damage(tenant, conversation_id):
            raise damage
        view = await self._views.read(tenant, conversation_id)
        # An interrupted deletion continues, although its tombstone is young.
        if not view.deleted:
            used_at = datetime.fromisoformat(record.updated_at)
            used_at = max(used_at, view.last_ts or used_at)
            if view.open_run is not None or self._clock.now() - used_at < retention:
                return
            # The log does not contain runs that no agent has started yet.
            if await jetstream.count_below(self._bus, RUNS, subjects.run_work(tenant, conversation_id)):
                return
        await self._changes.delete(Caller(tenant, USER), conversation_id)
        _EXPIRED.inc()
        logger.info(
            "an unused conversation is deleted", extra={"tenant": tenant, "conversation_id": conversation_id}
        )
