"""The tenants' documents, each kind in one KV bucket: assistants, system prompts, approval policies."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import AsyncExitStack
from typing import Final, Generic, TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import ASSISTANTS, POLICIES, PROMPTS, kv_subject
from banksman.bus.storage.kv import Bucket, Entry
from banksman.contracts import subjects
from banksman.contracts.assistants import ApprovalPolicy, Assistant, ToolSettings
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.registry import SystemPrompt
from banksman.prompting.templates import DEFAULT_PROMPT
from banksman.quotas.stored import ByteRoom
from banksman.runtime.scope import Scoped

DEFAULT_ASSISTANT = Assistant(
    id="default", name="Default", system_prompt=DEFAULT_PROMPT, tools=ToolSettings(enabled=True)
)
"""The assistant that each tenant begins with: tools on, the built-in prompt."""
DEFAULT_SYSTEM_PROMPT = SystemPrompt(id="default", name="Default", content=DEFAULT_PROMPT)
"""The system prompt that each tenant begins with."""

POLICY: Final = ApprovalPolicy().id
"""The id of the one policy of each tenant."""

VALID_S: Final = 20.0
"""Maximum seconds for which a cached value is used, in case the message about a write is lost."""
MAX_VALUES: Final = 256
MAX_CHARS: Final = 64 * 1024
"""Characters of JSON above which a value is not cached; with `MAX_VALUES`, it bounds the memory."""

T = TypeVar("T", bound=BaseModel)
D = TypeVar("D", Assistant, SystemPrompt, ApprovalPolicy)


class RecentValues(Scoped, Generic[T]):
    """Reads values: from the leader at first and after each write, otherwise from memory.

    As a context manager it watches writes, and caches values while it does. A write of another process takes
    a moment to arrive, so a decision that must not be wrong reads the bucket.
    """

    def __init__(self, bucket: Bucket[T]) -> None:
        self._bucket = bucket
        self._entries: OrderedDict[str, tuple[Entry[T], float]] = OrderedDict()
        """By key: the value, and the time of its expiry by the clock of the event loop."""
        self._writes = 0
        self._watched = asyncio.Event()

    async def _enter(self, scope: AsyncExitStack) -> None:
        bus = self._bucket.bus
        written = subjects.stored(kv_subject(self._bucket.name, ">"))
        scope.callback(bus.on_loss(self._forget_all))
        scope.callback(self._watched.clear)
        scope.push_async_callback((await bus.subscribe(written, self._written)).unsubscribe)
        self._watched.set()

    async def get(self, key: str) -> Entry[T] | None:
        """Return a value, which may be cached for a moment; raise `Poison` if it cannot be decoded."""
        now, writes = asyncio.get_running_loop().time(), self._writes
        known = self._entries.get(key)
        if known is not None and now < known[1]:
            return known[0]
        entry = await self._bucket.get(key)
        # A write during the read may be newer than the value that was read.
        unchanged = self._watched.is_set() and writes == self._writes
        if entry is not None and unchanged and len(entry.value.model_dump_json()) <= MAX_CHARS:
            self._entries[key] = entry, now + VALID_S
            self._entries.move_to_end(key)
            if len(self._entries) > MAX_VALUES:
                self._entries.popitem(last=False)
        return entry

    def forget(self, key: str) -> None:
        """Drop a value that this process wrote: the message about it may arrive after the next read."""
        self._writes += 1
        self._entries.pop(key, None)

    async def _written(self, message: Message) -> None:
        self.forget(self._bucket.key_of(message.subject.removeprefix(subjects.stored(""))))

    def _forget_all(self) -> None:
        self._writes += 1
        self._entries.clear()


class TenantStore(Generic[D]):
    """The documents of one kind, keys `{tenant}.{id}`. Each tenant begins with a default document."""

    def __init__(self, bus: Bus, bucket: str, model: type[D], noun: str, default: D) -> None:
        self._bucket = Bucket(bus, bucket, model)
        self.recent = RecentValues(self._bucket)
        """The cache of the documents that runs use; the service opens it as a context manager."""
        self._room = ByteRoom(bus, self._bucket.stream, self._bytes_of, f"{noun}s")
        self._noun = noun
        self._default = default

    async def get(self, tenant: str, document_id: str) -> D:
        """Return a document, or raise `NotFound`. The first request for the default stores it."""
        entry = await self._bucket.get(f"{tenant}.{document_id}")
        if entry is not None:
            return _with_revision(entry)
        if document_id != self._default.id:
            raise NotFound(self._noun, document_id)
        await self._bucket.create(f"{tenant}.{document_id}", self._default)
        return await self.get(tenant, document_id)

    async def in_use(self, tenant: str, document_id: str) -> D:
        """Return a document as `get` does, from a cache that may be a moment old, for a run that starts."""
        entry = await self.recent.get(f"{tenant}.{document_id}")
        return await self.get(tenant, document_id) if entry is None else _with_revision(entry)

    async def list(self, tenant: str) -> list[D]:
        """Return all documents of a tenant, sorted by id."""
        await self.get(tenant, self._default.id)
        found = [_with_revision(entry) async for entry in self._bucket.entries(tenant)]
        return sorted(found, key=lambda document: document.id)

    async def create(self, tenant: str, document: D) -> D:
        """Store a new document and return it with its revision.

        Raises:
            Conflict: The id is taken.
            Overloaded: The tenant's documents fill its share of the bucket.
        """
        await self._room.take(tenant, _size(document))
        revision = await self._bucket.create(f"{tenant}.{document.id}", document)
        if revision is None:
            raise Conflict(f"{self._noun} {document.id!r} exists already")
        return document.model_copy(update={"revision": revision})

    async def create_once(self, tenant: str, document: D, *, is_first: bool) -> tuple[D, bool]:
        """Store the new document of a request, and return it and whether it was stored now.

        A request that is not the first with its id may find the document that an earlier attempt stored.
        """
        try:
            return await self.create(tenant, document), True
        except Conflict:
            if is_first:
                raise
            return await self.get(tenant, document.id), False

    async def replace(
        self, tenant: str, document: D, revision: int | None = None, *, rewrite_equal: bool = False
    ) -> D:
        """Replace a document and return it with its new revision.

        Args:
            revision: The revision to replace; None replaces any.
            rewrite_equal: Whether equal content is written too. False returns an equal stored document,
                whatever its revision, so that a repeated request changes nothing.

        Raises:
            NotFound: No such document.
            Conflict: The stored document has another revision.
            Overloaded: The document grows, and the tenant's documents fill its share of the bucket.
        """
        while True:
            stored = await self.get(tenant, document.id)
            if not rewrite_equal and document.model_copy(update={"revision": stored.revision}) == stored:
                return stored
            if revision is not None and stored.revision != revision:
                found = f"{self._noun} {document.id!r} is at revision {stored.revision}, not {revision}"
                raise Conflict(f"{found}: read it again")
            if (growth := _size(document) - _size(stored)) > 0:
                await self._room.take(tenant, growth)
            # Compare-and-set: after a concurrent write, compare with the newly stored document.
            written = await self._bucket.update(f"{tenant}.{document.id}", document, stored.revision)
            self.recent.forget(f"{tenant}.{document.id}")
            if written is not None:
                return document.model_copy(update={"revision": written})

    def initial(self, document_id: str) -> D | None:
        """Return the document that is stored in place of a deleted one; None if nothing is."""
        return self._default if document_id == self._default.id else None

    async def delete(self, tenant: str, document_id: str, revision: int | None = None) -> None:
        """Delete a stored document. A default is stored again when it is next used.

        Args:
            revision: The revision to delete; None deletes any.

        Raises:
            NotFound: No such document.
            Conflict: The stored document has another revision.
        """
        if await self._bucket.get(f"{tenant}.{document_id}") is None:
            raise NotFound(self._noun, document_id)
        if not await self._bucket.delete(f"{tenant}.{document_id}", revision=revision):
            raise Conflict(f"{self._noun} {document_id!r} was changed meanwhile: read it again")
        self.recent.forget(f"{tenant}.{document_id}")
        self._room.forget(tenant)

    async def _bytes_of(self, tenant: str) -> int:
        return sum([_size(entry.value) async for entry in self._bucket.entries(tenant)])


class AssistantStore(TenantStore[Assistant]):
    """The assistants of all tenants."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, ASSISTANTS, Assistant, "assistant", DEFAULT_ASSISTANT)


class PromptStore(TenantStore[SystemPrompt]):
    """The system prompts of all tenants."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, PROMPTS, SystemPrompt, "system prompt", DEFAULT_SYSTEM_PROMPT)


class PolicyStore(TenantStore[ApprovalPolicy]):
    """The approval policies: one for each tenant, without rules at first."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, POLICIES, ApprovalPolicy, "approval policy", ApprovalPolicy())


def _size(document: BaseModel) -> int:
    return len(document.model_dump_json())


def _with_revision(entry: Entry[D]) -> D:
    return entry.value.model_copy(update={"revision": entry.revision})
