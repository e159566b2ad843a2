"""Assistants and their revisions, as clients read and change them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

from fastapi import Path, Query

from banksman.bus.connection import Bus
from banksman.bus.names import ASSISTANT_REVISIONS
from banksman.contracts.assistants import (
    Assistant,
    AssistantBody,
    AssistantList,
    AssistantUpdate,
    NewAssistant,
)
from banksman.contracts.errors import BadInput, Forbidden, NotFound
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Timestamp
from banksman.gateway.assistants.run_settings import ModelNames
from banksman.gateway.assistants.tenant_store import TenantStore
from banksman.gateway.operation.caller import ADMIN, Caller
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.quotas.stored import SharedBucket
from banksman.runs.ports import Clock
from banksman.runs.schema_checks.checker import SchemaChecker

GOVERNED = (
    "approval_policy",
    "approvals",
    "tools.enabled",
    "tools.allowed_tools",
    "tools.mcp_servers",
    "tools.network",
    "tools.on_reject",
    "tools.toolchain",
)
"""The fields that determine what runs without a decision. Changes need the right for the tenant's policy."""
RESPONSE_SCHEMA = "options.response_schema"
MAX_REVISIONS = 50
MAX_BYTES = 512 * 1024
"""Maximum bytes of an assistant's revisions; the oldest are dropped first. A message has at most 1 MiB."""
DETAILS = ("name", "revision")
Revision = Annotated[int, Path(ge=1)]

operations = Operations("assistants")


@dataclass(frozen=True, slots=True)
class Assistants:
    store: TenantStore[Assistant]
    prompts: TenantStore[SystemPrompt]
    requests: StoredRequests
    histories: AssistantHistories
    models: ModelNames
    schemas: SchemaChecker

    @operations.add("assistant.list", "GET /context/assistants")
    async def list_assistants(self: Service, caller: CallerDep) -> AssistantList:
        """List assistants, without the contents of their files."""
        listed = await self.store.list(caller.tenant)
        return AssistantList(items=tuple(_without_file_contents(one) for one in listed))

    @operations.add(
        "assistant.create", "POST /context/assistants", errors=(MISSING, CONFLICT, EARLY), audit=DETAILS
    )
    async def create_assistant(
        self: Service, body: StrictBody[NewAssistant], caller: CallerDep, request_id: RequestId
    ) -> Assistant:
        """Create an assistant."""
        await self._check_parts(caller, body)
        mine = {"id": body.id or new_id("as"), "request": new_id("q")}
        ids = await self.requests.once_created(caller, "assistant", request_id, body, mine)
        assistant = body.assistant(ids["id"])
        _check_right(caller, Assistant(id=assistant.id), assistant)
        stored, is_new = await self.store.create_once(caller.tenant, assistant, is_first=ids == mine)
        if is_new:
            await self.histories.add(caller.tenant, None, stored, caller.user)
        return stored

    @operations.add("assistant.read", "GET /context/assistants/{assistant_id}")
    async def read_assistant(self: Service, assistant_id: str, caller: CallerDep) -> Assistant:
        """Read an assistant."""
        return await self.store.get(caller.tenant, check_token(assistant_id, "assistant_id"))

    @operations.add(
        "assistant.update",
        "PUT /context/assistants/{assistant_id}",
        errors=(MISSING, CONFLICT),
        audit=DETAILS,
    )
    async def update_assistant(
        self: Service, assistant_id: str, body: StrictBody[AssistantUpdate], caller: CallerDep
    ) -> Assistant:
        """Replace an assistant."""
        # A repeated request changes nothing.
        await self._check_parts(caller, body)
        assistant = body.assistant(check_token(assistant_id, "assistant_id"))
        return await self._replace(caller, assistant, body.revision)

    @operations.add("assistant.revisions", "GET /context/assistants/{assistant_id}/revisions")
    async def list_revisions(self: Service, assistant_id: str, caller: CallerDep) -> AssistantRevisions:
        """List the stored revisions of an assistant, newest first: the last 50, in at most 512 KiB."""
        items = (await self._history(caller, assistant_id)).items
        listed = (
            AssistantRevision(revision=one.assistant.revision, at=one.at, by=one.by, current=one is items[-1])
            for one in reversed(items)
        )
        return AssistantRevisions(items=tuple(listed))

    @operations.add("assistant.revision", "GET /context/assistants/{assistant_id}/revisions/{revision}")
    async def read_revision(
        self: Service, assistant_id: str, revision: Revision, caller: CallerDep
    ) -> Assistant:
        """Read a revision of an assistant."""
        return (await self._history(caller, assistant_id)).at(revision)

    @operations.add(
        "assistant.changes", "GET /context/assistants/{assistant_id}/revisions/{revision}/changes"
    )
    async def compare_revisions(
        self: Service,
        assistant_id: str,
        revision: Revision,
        caller: CallerDep,
        since: Annotated[int | None, Query(ge=1)] = None,
    ) -> AssistantChanges:
        """Show the fields in which a revision differs from revision `since`, or from the one before it."""
        return (await self._history(caller, assistant_id)).changes(revision, since)

    @operations.add(
        "assistant.restore",
        "POST /context/assistants/{assistant_id}/revisions/{revision}/restore",
        audit=DETAILS,
    )
    async def restore_revision(
        self: Service, assistant_id: str, revision: Revision, caller: CallerDep
    ) -> Assistant:
        """Store the content of a revision again, as a new revision."""
        # A repeated request changes nothing.
        wanted = (await self._history(caller, assistant_id)).at(revision)
        await self._check_parts(caller, wanted)
        return await self._replace(caller, wanted, None)

    @operations.add("assistant.delete", "DELETE /context/assistants/{assistant_id}", audit=())
    async def delete_assistant(self: Service, assistant_id: str, caller: CallerDep) -> None:
        """Delete an assistant."""
        stored = await self.read_assistant(assistant_id, caller)
        _check_right(caller, stored, self.store.initial(assistant_id) or Assistant(id=assistant_id))
        await self.store.delete(caller.tenant, assistant_id, stored.revision)
        await self.histories.delete(caller.tenant, assistant_id)

    async def _history(self, caller: Caller, assistant_id: str) -> History:
        return await self.histories.of(caller.tenant, await self.read_assistant(assistant_id, caller))

    async def _replace(self, caller: Caller, assistant: Assistant, revision: int | None) -> Assistant:
        before = await self.store.get(caller.tenant, assistant.id)
        if _check_right(caller, before, assistant):
            # A concurrent change of the checked fields must not be undone.
            revision = revision or before.revision
        stored = await self.store.replace(caller.tenant, assistant, revision)
        await self.histories.add(caller.tenant, before, stored, caller.user)
        return stored

    async def _check_parts(self, caller: Caller, given: AssistantBody | Assistant) -> None:
        if given.tools.network is not None and given.tools.network.registries:
            raise BadInput("tools.network.registries", None, "is set in the policy of the tenant only")
        if given.tools.search is not None:
            raise BadInput("tools.search", None, "is set with `search_provider.set` only")
        if given.system_prompt_id is not None:
            await self.prompts.get(caller.tenant, given.system_prompt_id)
        for name in (given.model, *given.fallback_models):
            if name is not None:
                self.models.of(caller.tenant).checked(name)
        if given.options.response_schema is not None:
            await self.schemas.check_schema(caller.tenant, given.options.response_schema, RESPONSE_SCHEMA)


Service = Annotated[Assistants, provided(Assistants)]


def _check_right(caller: Caller, before: Assistant, after: Assistant) -> bool:
    """Return whether the caller lacks the right for policies; raise `Forbidden` if the change needs it."""
    lacks = caller.rights.isdisjoint(ADMIN)
    for field in GOVERNED if lacks else ():
        value = attrgetter(field)
        if value(before) != value(after):
            raise Forbidden(f"{field}: a change needs the right {' or '.join(ADMIN)}")
    return lacks


def _without_file_contents(assistant: Assistant) -> Assistant:
    # A list with the contents of all files would exceed the size of a message over NATS.
    files = tuple(file.model_copy(update={"content": None}) for file in assistant.files)
    return assistant.model_copy(update={"files": files})


class StoredRevision(Stored):
    assistant: Assistant
    at: Timestamp | None = None
    by: str = ""


class History(Stored):
    """The newest revisions of one assistant, oldest first."""

    items: tuple[StoredRevision, ...] = ()

    def find(self, revision: int) -> StoredRevision | None:
        return next((one for one in self.items if one.assistant.revision == revision), None)

    def at(self, revision: int) -> Assistant:
        """Return a revision; raise `NotFound` if it does not exist, or is no longer stored."""
        stored = self.find(revision)
        if stored is None:
            raise NotFound("revision", str(revision))
        return stored.assistant

    def before(self, revision: int) -> int:
        """Return the number of the stored revision before `revision`; `revision` itself for the oldest."""
        older = [one.assistant.revision for one in self.items if one.assistant.revision < revision]
        return older[-1] if older else revision

    def changes(self, revision: int, since: int | None) -> AssistantChanges:
        """Return how a revision differs from another one; None stands for the one before it."""
        after, before = self.at(revision), self.at(self.before(revision) if since is None else since)
        old, new = _fields(before), _fields(after)
        differing = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        items = (ChangedField(field=name, before=old.get(name), after=new.get(name)) for name in differing)
        return AssistantChanges(since=before.revision, revision=revision, items=tuple(items))

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
        entry = await self._bucket.get(f"{tenant}.{current.id}")
        history = History() if entry is None else entry.value
        return history.plus(StoredRevision(assistant=current))

    async def delete(self, tenant: str, assistant_id: str) -> None:
        await self._bucket.delete(f"{tenant}.{assistant_id}")


def _fields(assistant: Assistant) -> JsonObject:
    return assistant.model_dump(mode="json", exclude={"id", "revision"})


class AssistantRevision(Stored):
    """One revision of an assistant."""

    revision: int
    at: Timestamp | None
    """Time of storage; None if unknown."""
    by: str
    """The user who stored it; empty if unknown."""
    current: bool
    """Whether runs use this revision."""


class AssistantRevisions(Stored):
    """The stored revisions of an assistant, newest first."""

    items: tuple[AssistantRevision, ...]


class ChangedField(Stored):
    """A field that differs between two revisions."""

    field: str
    before: JsonValue
    after: JsonValue


class AssistantChanges(Stored):
    """The differences between two revisions of an assistant."""

    since: int
    revision: int
    items: tuple[ChangedField, ...]
