"""The index of conversations: KV `conversations`, keys `{tenant}.{conversation}`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.bus.connection import Bus
from banksman.bus.names import CONVERSATIONS
from banksman.bus.storage.kv import Entry
from banksman.contracts.assistants import ConversationRecord, ConversationSettings, TitleSource
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.ids import check_token, conversation_of_approval
from banksman.gateway.conversations.listing import newest, position
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.conversations.views import Views
from banksman.quotas.stored import SharedBucket
from banksman.runs.ports import Clock

logger = logging.getLogger(__name__)

MAX_PAGE = 200
FOLDS_AT_ONCE = 16
FRESH = timedelta(seconds=60)
"""A record younger than this is not rewritten merely to move it up in the list."""
TITLE_CHARS = 60
FIRST_MESSAGE_WITHIN_S = 2.0
"""Seconds after its creation in which a conversation's first message is expected."""
MAX_CREATED = 1_000


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the list, newest first."""

    items: list[ConversationRecord]
    next: str | None
    """Cursor of the next page; None at the end."""


class CreatedConversations:
    """Caches the records of conversations that this process just created, for their first messages.

    The log of such a conversation is empty, and its record need not be read.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[str, str], tuple[ConversationRecord, float]] = OrderedDict()

    def add(self, tenant: str, record: ConversationRecord) -> None:
        """Cache the record of a conversation that was just stored."""
        self._records[tenant, record.conversation_id] = record, time.monotonic()
        if len(self._records) > MAX_CREATED:
            self._records.popitem(last=False)

    def take(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """Remove and return the record of a conversation; None if it is not cached, or too old."""
        record, at = self._records.pop((tenant, conversation_id), (None, 0.0))
        return record if time.monotonic() - at < FIRST_MESSAGE_WITHIN_S else None


class Conversations:
    """The conversations of all tenants."""

    def __init__(self, bus: Bus, views: Views, clock: Clock) -> None:
        self._bus = bus
        self._views = views
        self._clock = clock
        self._bucket = SharedBucket(bus, CONVERSATIONS, ConversationRecord, "conversations")

    async def create(self, tenant: str, record: ConversationRecord) -> bool:
        """Store a conversation; return False if it exists.

        Raises:
            Overloaded: The tenant has reached its limit of conversations.
        """
        return await self._bucket.create(f"{tenant}.{record.conversation_id}", record) is not None

    async def get(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """Return the stored record.

        Raises:
            BadInput: The id is malformed.
            NotFound: This tenant has no such conversation.
        """
        return (await self._entry(tenant, conversation_id)).value

    async def current(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """Return the record with the status and the last update that its log shows now.

        Raises:
            BadInput: The id is malformed.
            NotFound: This tenant has no such conversation.
        """
        return await self._with_log(tenant, await self.get(tenant, conversation_id))

    async def view_of_approval(self, tenant: str, approval_id: str) -> ConversationView | None:
        """Return the view of an approval request's conversation; None if the tenant has no such conversation.

        Raises:
            LogBroken, Poison: Its log cannot be read.
        """
        conversation_id = conversation_of_approval(approval_id)
        if conversation_id is None:
            return None
        try:
            await self.get(tenant, conversation_id)
        except NotFound:
            return None
        return await self._views.read(tenant, conversation_id)

    async def rename(self, tenant: str, conversation_id: str, title: str) -> ConversationRecord:
        """Store a new title and return the record.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        while True:
            entry = await self._entry(tenant, conversation_id)
            changes = {"title": title, "title_by": "person", "updated_at": self._now()}
            renamed = entry.value.model_copy(update=changes)
            if await self._bucket.update(entry.key, renamed, entry.revision) is not None:
                return renamed

    async def generated(self, tenant: str, conversation_id: str, title: str | None) -> bool:
        """Store the title that a model wrote; return False if a user chose one meanwhile.

        None records that the model wrote none: the title is unchanged, and is not generated again.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        while True:
            entry = await self._entry(tenant, conversation_id)
            if entry.value.title_by != "message":
                return False
            changes = {"title": title or entry.value.title, "title_by": "model"}
            changed = entry.value.model_copy(update=changes)
            if await self._bucket.update(entry.key, changed, entry.revision) is not None:
                return title is not None

    async def mark(
        self, tenant: str, conversation_id: str, pinned: bool | None, archived: bool | None
    ) -> ConversationRecord:
        """Store whether a conversation is pinned and archived, and return the record. None changes nothing.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        wanted = {"pinned": pinned, "archived": archived}
        changes = {name: value for name, value in wanted.items() if value is not None}
        while True:
            entry = await self._entry(tenant, conversation_id)
            marked = entry.value.model_copy(update=changes)
            if marked == entry.value or await self._bucket.update(entry.key, marked, entry.revision):
                return marked

    async def touch(self, tenant: str, record: ConversationRecord, text: str) -> None:
        """Move a conversation up in the list after a new message, and derive a title if it has none.

        Best effort: a concurrent write of the record wins.
        """
        young = self._clock.now() - datetime.fromisoformat(record.updated_at) < FRESH
        if record.title and young:
            return
        entry = await self._bucket.get(f"{tenant}.{record.conversation_id}")
        if entry is not None:
            title = entry.value.title or title_of(text)
            changed = entry.value.model_copy(update={"title": title, "updated_at": self._now()})
            await self._bucket.update(entry.key, changed, entry.revision)

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Remove a conversation from the index."""
        await self._bucket.delete(f"{tenant}.{conversation_id}")
        self._views.forget(tenant, conversation_id)

    async def list(
        self,
        tenant: str,
        *,
        query: str = "",
        cursor: str | None = None,
        limit: int = 50,
        pinned: bool | None = None,
        archived: bool = False,
    ) -> Page:
        """Return a page of the list; `query` selects by a part of the title, or by id.

        Args:
            tenant: The tenant.
            query: Part of a title in any case, or an id.
            cursor: Where the page begins; None for the newest.
            limit: Conversations in the page.
            pinned: Whether they are pinned; None for both.
            archived: Whether they are archived.

        Raises:
            BadInput: The cursor was not returned by this list.
        """
        wanted = query.casefold().strip()

        def matches(record: ConversationRecord) -> bool:
            listed = record.archived == archived and pinned in (None, record.pinned)
            return listed and (wanted in record.title.casefold() or wanted == record.conversation_id)

        found, next_cursor = await newest(
            self._bus, self._bucket, tenant, position(cursor), min(limit, MAX_PAGE), matches
        )
        return Page(await self._all_with_logs(tenant, [entry.value for entry in found]), next_cursor)

    async def _entry(self, tenant: str, conversation_id: str) -> Entry[ConversationRecord]:
        entry = await self._bucket.get(f"{tenant}.{check_token(conversation_id, 'conversation_id')}")
        if entry is None:
            raise NotFound("conversation", conversation_id)
        return entry

    async def _all_with_logs(
        self, tenant: str, records: list[ConversationRecord]
    ) -> list[ConversationRecord]:
        folds = asyncio.Semaphore(FOLDS_AT_ONCE)

        async def with_log(record: ConversationRecord) -> ConversationRecord:
            async with folds:
                try:
                    return await self._with_log(tenant, record)
                except BanksmanError as error:
                    logger.warning("the status of %s could not be read: %s", record.conversation_id, error)
                    return record

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(with_log(record)) for record in records]
        return [task.result() for task in tasks]

    def _now(self) -> str:
        return self._clock.now().isoformat()

    async def _with_log(self, tenant: str, record: ConversationRecord) -> ConversationRecord:
        view = await self._views.read(tenant, record.conversation_id)
        updated_at = record.updated_at
        if view.last_ts is not None and view.last_ts > datetime.fromisoformat(updated_at):
            updated_at = view.last_ts.isoformat()
        return record.model_copy(update={"status": view.status, "updated_at": updated_at})


def new_record(
    conversation_id: str,
    title: str,
    assistant: str,
    settings: ConversationSettings,
    *,
    by: str,
    now: datetime,
    title_by: TitleSource = "person",
) -> ConversationRecord:
    """Return the record of a new conversation."""
    return ConversationRecord(
        conversation_id=conversation_id,
        title=title,
        title_by=title_by,
        assistant=assistant,
        settings=settings,
        created_by=by,
        created_at=now.isoformat(),
        updated_at=now.isoformat(),
    )


def title_of(text: str) -> str:
    """Return a title from the first message: its first non-empty line, cut at 60 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1].rstrip()}…"
