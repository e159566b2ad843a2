"""The index of conversations: KV `conversations`, keys `{tenant}.{conversation}`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from banksman.bus.connection import Bus
from banksman.bus.names import CONVERSATIONS
from banksman.bus.storage.kv import Entry
from banksman.contracts.assistants import ConversationRecord, ConversationSettings, TitleSource
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.ids import check_token, conversation_of_approval
from banksman.contracts.workspaces import RepositorySource
from banksman.gateway.conversations.bodies import ConversationPage
from banksman.gateway.conversations.listing import newest, position
from banksman.gateway.conversations.people import LimitedConversations
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.conversations.views import Views
from banksman.gateway.operation.caller import Caller
from banksman.quotas.stored import SharedBucket
from banksman.runs.ports import Clock

K = TypeVar("K")
V = TypeVar("V")

logger = logging.getLogger(__name__)

MAX_PAGE = 200
READS_AT_ONCE = 16
FRESH = timedelta(seconds=60)
"""A record younger than this is not rewritten merely to move it up in the list."""
TITLE_CHARS = 60
FIRST_MESSAGE_WITHIN_S = 2.0
"""Seconds after its creation in which a conversation's first message is expected."""
MAX_CREATED = 1_000


class CreatedConversations:
    """Caches the records of conversations that this process just created, for their first messages.

    The log of such a conversation is empty, and its record need not be read.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[str, str], tuple[ConversationRecord, float]] = OrderedDict()

    def add(self, tenant: str, record: ConversationRecord) -> None:
        self._records[tenant, record.conversation_id] = record, time.monotonic()
        if len(self._records) > MAX_CREATED:
            self._records.popitem(last=False)

    def take(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """Remove and return the record of a conversation; None if it is not cached, or too old."""
        record, at = self._records.pop((tenant, conversation_id), (None, 0.0))
        return record if time.monotonic() - at < FIRST_MESSAGE_WITHIN_S else None


class Conversations:
    def __init__(self, bus: Bus, views: Views, clock: Clock, limited: LimitedConversations) -> None:
        self.limited = limited
        self._views = views
        self._clock = clock
        self._bucket = SharedBucket(bus, CONVERSATIONS, ConversationRecord, "conversations")

    async def create(self, tenant: str, record: ConversationRecord) -> bool:
        """Store a conversation; return False if it exists. `Overloaded` at the tenant's limit."""
        return await self._bucket.create(f"{tenant}.{record.conversation_id}", record) is not None

    async def get(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """Return the stored record; raise `NotFound` if this tenant has no such conversation."""
        return (await self._entry(tenant, conversation_id)).value

    async def current(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """Return the record with its people, and the status and the last update that its log shows now."""
        return await self._with_log(tenant, await self.get(tenant, conversation_id))

    async def view_of_approval(self, tenant: str, approval_id: str) -> ConversationView | None:
        """Return the view of an approval request's conversation; None if the tenant has none."""
        conversation_id = conversation_of_approval(approval_id)
        if conversation_id is None:
            return None
        try:
            await self.get(tenant, conversation_id)
        except NotFound:
            return None
        return await self._views.read(tenant, conversation_id)

    async def rename(self, tenant: str, conversation_id: str, title: str) -> None:
        changes = {"title": title, "title_by": "person", "updated_at": self._now()}
        await self._change(tenant, conversation_id, lambda _: changes)

    async def generated(self, tenant: str, conversation_id: str, title: str | None) -> bool:
        """Store the title that a model wrote; return False if a user chose one meanwhile.

        None records that the model wrote none: the title is unchanged, and is not generated again.
        """

        def changes(record: ConversationRecord) -> Mapping[str, Any]:
            is_derived = record.title_by == "message"
            return {"title": title or record.title, "title_by": "model"} if is_derived else {}

        before = await self._change(tenant, conversation_id, changes)
        return before.title_by == "message" and title is not None

    async def mark(self, tenant: str, conversation_id: str, marks: Mapping[str, Any]) -> None:
        await self._change(tenant, conversation_id, lambda _: marks)

    async def touch(self, tenant: str, record: ConversationRecord, text: str) -> None:
        """Move a conversation up in the list, and derive a missing title. A concurrent write wins."""
        young = self._clock.now() - datetime.fromisoformat(record.updated_at) < FRESH
        if record.title and young:
            return
        entry = await self._bucket.get(f"{tenant}.{record.conversation_id}")
        if entry is not None:
            title = entry.value.title or title_of(text)
            changed = entry.value.model_copy(update={"title": title, "updated_at": self._now()})
            await self._bucket.update(entry.key, changed, entry.revision)

    async def delete(self, tenant: str, conversation_id: str) -> None:
        await self.limited.note_deleted(tenant, conversation_id)
        await self._bucket.delete(f"{tenant}.{conversation_id}")
        self._views.forget(tenant, conversation_id)

    async def list(
        self,
        caller: Caller,
        *,
        query: str = "",
        cursor: str | None = None,
        limit: int = 50,
        pinned: bool | None = None,
        archived: bool = False,
        label: str | None = None,
    ) -> ConversationPage:
        """Return a page of the list as the caller may see it, newest first.

        Args:
            query: Part of a title or of a label in any case, or an id.
            pinned: Whether they are pinned; None for both.
            label: A label that they have; None for all.
        """
        wanted, tenant = query.casefold().strip(), caller.tenant

        def matches(record: ConversationRecord) -> bool:
            if self.limited.hides(caller, record.conversation_id):
                return False
            listed = record.archived == archived and pinned in (None, record.pinned)
            texts = (record.title, *record.labels)
            named = wanted == record.conversation_id or any(wanted in text.casefold() for text in texts)
            return listed and label in (None, *record.labels) and named

        before = position(cursor, "list")
        found, next_cursor = await newest(self._bucket, tenant, before, min(limit, MAX_PAGE), matches)
        items = await read_all(partial(self._listed, tenant), [entry.value for entry in found])
        return ConversationPage(items=tuple(items), next=next_cursor)

    async def _change(
        self, tenant: str, conversation_id: str, changes: Callable[[ConversationRecord], Mapping[str, Any]]
    ) -> ConversationRecord:
        """Apply changes to the stored record; return the record before them."""
        while True:
            entry = await self._entry(tenant, conversation_id)
            changed = entry.value.model_copy(update=changes(entry.value))
            if changed == entry.value or await self._bucket.update(entry.key, changed, entry.revision):
                return entry.value

    async def _entry(self, tenant: str, conversation_id: str) -> Entry[ConversationRecord]:
        entry = await self._bucket.get(f"{tenant}.{check_token(conversation_id, 'conversation_id')}")
        if entry is None:
            raise NotFound("conversation", conversation_id)
        return entry

    async def _listed(self, tenant: str, record: ConversationRecord) -> ConversationRecord:
        try:
            return await self._with_log(tenant, record)
        except BanksmanError as error:
            logger.warning("the status of %s could not be read: %s", record.conversation_id, error)
            return record

    def _now(self) -> str:
        return self._clock.now().isoformat()

    async def _with_log(self, tenant: str, record: ConversationRecord) -> ConversationRecord:
        record = self.limited.shown(tenant, record)
        view = await self._views.read(tenant, record.conversation_id)
        updated_at = record.updated_at
        if view.last_ts is not None and view.last_ts > datetime.fromisoformat(updated_at):
            updated_at = view.last_ts.isoformat()
        return record.model_copy(update={"status": view.status, "updated_at": updated_at})


async def read_all(read: Callable[[K], Awaitable[V]], keys: Iterable[K]) -> list[V]:
    """Return what `read` returns for each key, in order; at most 16 reads run at once."""
    reads = asyncio.Semaphore(READS_AT_ONCE)

    async def limited(key: K) -> V:
        async with reads:
            return await read(key)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(limited(key)) for key in keys]
    return [task.result() for task in tasks]


def new_record(
    conversation_id: str,
    title: str,
    assistant: str = "default",
    settings: ConversationSettings = ConversationSettings(),  # noqa: B008  # frozen
    *,
    by: str,
    now: datetime,
    title_by: TitleSource = "person",
    source: RepositorySource | None = None,
) -> ConversationRecord:
    return ConversationRecord(
        conversation_id=conversation_id,
        title=title,
        title_by=title_by,
        assistant=assistant,
        settings=settings,
        source=source,
        created_by=by,
        created_at=now.isoformat(),
        updated_at=now.isoformat(),
    )


def title_of(text: str) -> str:
    """Return a title from the first message: its first non-empty line, cut at 60 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1].rstrip()}…"
