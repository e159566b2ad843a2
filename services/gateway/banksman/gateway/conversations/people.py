"""Conversations that are limited to people: everyone else of the tenant gets the answers for unknown ids.

The bucket `conversation-people` has the limited conversations alone. Each gateway has them in memory, so a
check costs no message; a gateway that has not read them serves no client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import PEOPLE
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.errors import BadInput, Conflict, Forbidden, NotFound, Poison, Unavailable
from banksman.contracts.ids import whole_of
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import RequestBody
from banksman.runs.ports import Clock

MAX_PEOPLE = 50
MAX_LIMITED = 1_000
"""Maximum limited conversations of one tenant. One takes about a KiB of each gateway's memory."""
FORGOTTEN_AFTER = timedelta(days=1)
"""Time after which a deleted conversation is no longer limited: until then its run and its log may remain."""
SEEN_WITHIN_S = 2.0
"""Seconds that a request waits until this gateway has received its own change from the broker."""

Person = Annotated[str, Field(min_length=1, max_length=200)]
OnChange = Callable[[str, str], None]
"""Called with a tenant and a conversation whose people have changed; must not block."""


class PeopleBody(RequestBody):
    """Who may see a conversation."""

    people: tuple[Person, ...] | None = Field(max_length=MAX_PEOPLE)
    """The users, to whom the caller is added; null for everyone of the tenant."""


class ConversationPeople(Stored):
    """Who may see a conversation."""

    conversation_id: Token
    people: tuple[str, ...] | None
    """The users; null for everyone of the tenant."""


class LimitedConversation(Stored):
    """KV `conversation-people`, key `{tenant}.{conversation}`."""

    people: tuple[str, ...]
    deleted_at: Timestamp | None = Field(default=None, exclude_if=lambda moment: moment is None)
    """When the conversation was deleted; None if it was not."""


class _Entries(Bucket[LimitedConversation]):
    def entry(self, message: StoredMessage) -> Entry[LimitedConversation]:
        """Decode a value. One that cannot be decoded hides its conversation until it is set again."""
        try:
            return super().entry(message)
        except Poison:
            return Entry(self.key_of(message.subject), LimitedConversation(people=()), message.stream_seq)


class LimitedConversations:
    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bucket = _Entries(bus, PEOPLE, LimitedConversation)
        self.view = BucketView(self._bucket, on_change=self._changed)
        """Reads the bucket once it is opened. A change takes effect in milliseconds, or within a minute if
        its message was lost."""
        self.on_change: OnChange | None = None
        self._clock = clock

    def hides(self, caller: Caller, conversation_id: str) -> bool:
        """Return whether a conversation is limited to people among whom the caller is not."""
        return not self.admits(caller.tenant, caller.user, conversation_id)

    def admits(self, tenant: str, user: str, conversation_id: str) -> bool:
        people = self.people(tenant, conversation_id)
        return people is None or user in people

    def people(self, tenant: str, conversation_id: str) -> tuple[str, ...] | None:
        """Return the people to whom a conversation is limited; None for everyone of the tenant."""
        entry = self.view.get(f"{tenant}.{whole_of(conversation_id)}")
        return None if entry is None else entry.value.people

    def shown(self, tenant: str, record: ConversationRecord) -> ConversationRecord:
        """Return a record with the people to whom its conversation is limited."""
        people = self.people(tenant, record.conversation_id)
        return record if people is None else record.model_copy(update={"people": people})

    async def limit(
        self, caller: Caller, record: ConversationRecord, people: tuple[str, ...] | None
    ) -> ConversationPeople:
        """Limit a conversation to people and the caller, or open it to everyone of the tenant with None.

        Returns once it is stored and this gateway applies it.

        Raises:
            NotFound: The conversation is limited to others, and the caller has no right `admin`.
            Forbidden: It is not limited, and the caller neither created it nor has the right `admin`.
            BadInput: It would have more than `MAX_PEOPLE`.
            Conflict: The tenant has `MAX_LIMITED` limited conversations.
        """
        wanted = None if people is None else tuple(dict.fromkeys((caller.user, *people)))
        if wanted is not None and len(wanted) > MAX_PEOPLE:
            raise BadInput("people", None, f"at most {MAX_PEOPLE} people with yourself")
        key = f"{caller.tenant}.{record.conversation_id}"
        while True:
            entry = await self._bucket.get(key)
            _check_may_limit(caller, record, entry)
            if await self._stored(key, entry, wanted):
                break
        return ConversationPeople(conversation_id=record.conversation_id, people=wanted)

    async def inherit(self, tenant: str, conversation_id: str, source: str) -> None:
        """Limit a conversation that is about to be created to the people of its source, if that has some."""
        people = self.people(tenant, source)
        key = f"{tenant}.{conversation_id}"
        if people is not None and self.view.get(key) is None:
            await self._stored(key, None, people)

    async def note_deleted(self, tenant: str, conversation_id: str) -> None:
        """Note that a conversation is deleted, which no longer counts a day later."""
        entry = self.view.get(f"{tenant}.{conversation_id}")
        if entry is not None and entry.value.deleted_at is None:
            deleted = entry.value.model_copy(update={"deleted_at": self._clock.now()})
            await self._bucket.put(entry.key, deleted)

    async def _stored(
        self, key: str, entry: Entry[LimitedConversation] | None, people: tuple[str, ...] | None
    ) -> bool:
        """Store the people in place of an entry and wait until this gateway has them; False if it changed."""
        if people is None:
            if entry is not None and not await self._bucket.delete(key, revision=entry.revision):
                return False
        elif entry is None:
            await self._make_room(key.partition(".")[0])
            if await self._bucket.create(key, LimitedConversation(people=people)) is None:
                return False
        elif await self._bucket.update(key, LimitedConversation(people=people), entry.revision) is None:
            return False
        await self._wait_until(key, people)
        return True

    async def _make_room(self, tenant: str) -> None:
        known = self.view.entries(f"{tenant}.")
        oldest = self._clock.now() - FORGOTTEN_AFTER
        ended = [one for one in known if one.value.deleted_at and one.value.deleted_at < oldest]
        for one in ended:
            await self._bucket.delete(one.key, revision=one.revision)
        if len(known) - len(ended) >= MAX_LIMITED:
            raise Conflict(f"the tenant has {MAX_LIMITED} limited conversations; delete or open some first")

    async def _wait_until(self, key: str, people: tuple[str, ...] | None) -> None:
        def seen(view: BucketView[LimitedConversation]) -> bool:
            found = view.get(key)
            return (found.value.people if found else None) == people

        try:
            async with asyncio.timeout(SEEN_WITHIN_S):
                await self.view.wait_for(seen)
        except TimeoutError:
            # The message of the change was lost, or another change followed it.
            with contextlib.suppress(Unavailable):
                await self.view.compare(key)

    def _changed(self, key: str, _: Entry[LimitedConversation] | None) -> None:
        if self.on_change is not None:
            tenant, conversation_id = key.split(".")
            self.on_change(tenant, conversation_id)


def _check_may_limit(
    caller: Caller, record: ConversationRecord, entry: Entry[LimitedConversation] | None
) -> None:
    if "admin" in caller.rights:
        return
    if entry is None and caller.user != record.created_by:
        raise Forbidden("only the person who created the conversation, or an administrator, may limit it")
    if entry is not None and caller.user not in entry.value.people:
        raise NotFound("conversation", record.conversation_id)
