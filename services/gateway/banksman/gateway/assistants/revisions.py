"""The newest revisions of each assistant, in one document of bounded size."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.names import ASSISTANT_REVISIONS
from banksman.contracts.assistant_requests import (
    AssistantChanges,
    AssistantRevision,
    AssistantRevisions,
    ChangedField,
)
from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import NotFound
from banksman.contracts.wire import JsonObject, Stored, Timestamp
from banksman.quotas.stored import SharedBucket
from banksman.runs.ports import Clock

MAX_REVISIONS = 50
MAX_BYTES = 512 * 1024
"""Maximum bytes of an assistant's revisions; the oldest are dropped first. A message has at most 1 MiB."""


class StoredRevision(Stored):
    """One stored revision of an assistant."""

    assistant: Assistant
    at: Timestamp | None = None
    by: str = ""


class History(Stored):
    """The newest revisions of one assistant, oldest first."""

    items: tuple[StoredRevision, ...] = ()

    def find(self, revision: int) -> StoredRevision | None:
        """Return a revision; None if it is not stored."""
        return next((one for one in self.items if one.assistant.revision == revision), None)

    def before(self, revision: int) -> int:
        """Return the number of the stored revision before `revision`; `revision` itself for the oldest."""
        older = [one.assistant.revision for one in self.items if one.assistant.revision < revision]
        return older[-1] if older else revision

    def plus(self, added: StoredRevision) -> History:
        """Return the history with a revision added, within its limits; a known revision changes nothing."""
        if self.find(added.assistant.revision) is not None:
            return self
        items = sorted((*self.items, added), key=lambda one: one.assistant.revision)[-MAX_REVISIONS:]
        while len(items) > 1 and sum(len(one.model_dump_json()) for one in items) > MAX_BYTES:
            items = items[1:]
        return History(items=tuple(items))


class AssistantHistories:
    """The histories of all assistants, keys `{tenant}.{assistant}`."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bucket = SharedBucket(bus, ASSISTANT_REVISIONS, History, "revisions of assistants")
        self._clock = clock

    async def add(self, tenant: str, before: Assistant | None, after: Assistant, by: str) -> None:
        """Store a revision, and the one before it if it is missing.

        Safe to repeat. If a gateway ends after it has written an assistant, the next change stores the
        missing revision, without time and user.
        """
        key = f"{tenant}.{after.id}"
        while True:
            entry = await self._bucket.get(key)
            history = History() if entry is None else entry.value
            if before is not None:
                history = history.plus(StoredRevision(assistant=before))
            history = history.plus(StoredRevision(assistant=after, at=self._clock.now(), by=by))
            if entry is None:
                written = await self._bucket.create(key, history)
            else:
                written = await self._bucket.update(key, history, entry.revision)
            if written is not None:
                return

    async def of(self, tenant: str, current: Assistant) -> History:
        """Return the revisions of an assistant, including the current one."""
        entry = await self._bucket.get(f"{tenant}.{current.id}")
        history = History() if entry is None else entry.value
        return history.plus(StoredRevision(assistant=current))

    async def delete(self, tenant: str, assistant_id: str) -> None:
        """Delete the revisions of an assistant."""
        await self._bucket.delete(f"{tenant}.{assistant_id}")


def listed(history: History, current: Assistant) -> AssistantRevisions:
    """Return the revisions, newest first, without their contents."""
    return AssistantRevisions(
        items=tuple(
            AssistantRevision(
                revision=one.assistant.revision,
                at=one.at,
                by=one.by,
                current=one.assistant.revision == current.revision,
            )
            for one in reversed(history.items)
        )
    )


def found(history: History, revision: int) -> Assistant:
    """Return a revision.

    Raises:
        NotFound: The revision does not exist, or is no longer stored.
    """
    stored = history.find(revision)
    if stored is None:
        raise NotFound("revision", str(revision))
    return stored.assistant


def changes(before: Assistant, after: Assistant) -> AssistantChanges:
    """Return the fields that differ between two revisions, in the order of their names."""
    old, new = _fields(before), _fields(after)
    differing = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    items = (ChangedField(field=name, before=old.get(name), after=new.get(name)) for name in differing)
    return AssistantChanges(since=before.revision, revision=after.revision, items=tuple(items))


def _fields(assistant: Assistant) -> JsonObject:
    return assistant.model_dump(mode="json", exclude={"id", "revision"})
