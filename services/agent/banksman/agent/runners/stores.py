"""What agents do on behalf of runners, whose permissions do not include it.

They remove objects, which runners may store but not purge, and record what runners report of workspaces in
the bucket by which calls are placed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, NamedTuple, cast

from banksman.bus import jetstream, names
from banksman.bus.connection import Bus
from banksman.bus.secrets import SecretUnusable, TenantSecrets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.objects import OWNER_END, subjects_below
from banksman.contracts.assistants import Assistant, ConversationRecord
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Forbidden
from banksman.contracts.ids import check_token, is_token
from banksman.contracts.workspaces import (
    REPOSITORY,
    ObjectRemoval,
    ObjectRemovalReply,
    RepositoryAccess,
    WorkspaceOwner,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.runs.runners.workspaces import apply_report
from banksman.runtime.scope import Scoped

COLLECT_EVERY_S: Final = 3600.0


class StoredSnapshot(NamedTuple):
    tenant: str
    conversation_id: str
    id: str
    stored_by: str
    """The runner that stored the snapshot."""


class StoreState(NamedTuple):
    held_bytes: int
    max_bytes: int
    """0 if the store does not exist or has no limit."""
    first_seq: int
    last_seq: int
    """Stream sequences of the first and of the last message."""
    max_message_bytes: int


class StoreRequests:
    """The JetStream API of the object stores of account RUN. `Unavailable`: the broker does not respond."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        settings = bus.settings
        # Without a key in the settings, the broker has no accounts, and the default JetStream API serves all
        # streams.
        self._api = names.runner_api if settings.nkey_seed or settings.nkey_seed_file else names.api

    async def state(self, store: str) -> StoreState:
        info = await self._call("STREAM.INFO", store, missing=names.CODE_STREAM_NOT_FOUND)
        if info is None:
            return StoreState(0, 0, 0, 0, 0)
        config, state = cast(dict[str, int], info["config"]), cast(dict[str, int], info["state"])
        return StoreState(
            state["bytes"],
            max(0, config["max_bytes"]),
            state["first_seq"],
            state["last_seq"],
            config["max_msg_size"] if config.get("max_msg_size", -1) > 0 else self._bus.max_payload,
        )

    async def subjects(self, store: str, below: str) -> AsyncIterator[tuple[str, int]]:
        """Yield the subjects of a store that match `below`, each with its number of messages."""
        stream = names.object_stream(store)
        request = self._api("STREAM.INFO", stream)
        async for found in jetstream.subjects_in(self._bus, stream, below, request=request):
            yield found

    async def next(self, store: str, subject: str, after: int) -> jetstream.StoredMessage | None:
        body = {"seq": after + 1, "next_by_subj": subject}
        response = await self._call("STREAM.MSG.GET", store, body)
        return None if response is None else jetstream.stored_message(response)

    async def purge(self, store: str, subject: str, *, before: int | None = None) -> None:
        """Remove all messages of matching subjects, or only those before a stream sequence."""
        body: dict[str, Any] = {"filter": subject}
        await self._call("STREAM.PURGE", store, body if before is None else {**body, "seq": before})

    async def _call(
        self,
        verb: str,
        store: str,
        body: dict[str, Any] | None = None,
        *,
        missing: int = names.CODE_NO_MESSAGE,
    ) -> dict[str, Any] | None:
        """Return the response of the API; None if it is the error `missing`."""
        try:
            return await jetstream.call(self._bus, self._api(verb, names.object_stream(store)), body)
        except jetstream.ApiError as error:
            if error.err_code == missing:
                return None
            raise


class RunnerStores(Scoped):
    def __init__(
        self,
        bus: Bus,
        leases: Callable[[], Iterable[RunnerLease]] = tuple,
        *,
        collect_every_s: float = COLLECT_EVERY_S,
    ) -> None:
        """`leases` returns those of live runners, which collect their own snapshots."""
        self._bus = bus
        self._leases = leases
        self._collect_every_s = collect_every_s
        self._stores = StoreRequests(bus)
        self._owners = Bucket(bus, names.OWNERS, WorkspaceOwner)
        self._unrecorded = frozenset[StoredSnapshot]()

    async def _enter(self, scope: AsyncExitStack) -> None:
        wait = partial(asyncio.sleep, self._collect_every_s)
        scope.push_async_callback(self._bus.background.repeat("snapshots", self.collect, wait=wait).stop)

    async def on_removal(self, request: ObjectRemoval, subject: str) -> ObjectRemovalReply:
        """Remove an object and those below it; raise `Forbidden` unless the subject's runner owns it."""
        runner = subject.rpartition(".")[2]
        if request.name.partition(OWNER_END)[0] != runner or not is_token(runner):
            raise Forbidden(f"{request.store}/{request.name} is not an object of {runner}")
        for below in subjects_below(request.store, request.name):
            await self._stores.purge(request.store, below)
        return ObjectRemovalReply(removed=True)

    async def remove_snapshots(self, tenant: str, conversation_id: str) -> None:
        """Remove all snapshots of a deleted conversation, of all runners, recorded or not."""
        below = f"*.{_workspace_key(tenant, conversation_id)}.>"
        for subject in (names.object_meta, names.object_chunks):
            await self._stores.purge(names.WORKSPACES, subject(names.WORKSPACES, below))

    async def collect(self) -> None:
        """Remove the snapshots that no record named at the last collection, and no record names now.

        A live runner collects its own snapshots. This removes those of runners that have left, and those that
        a snapshot of another runner has replaced.
        """
        stored = await self._stored()
        live = {lease.runner for lease in self._leases()}
        unrecorded = set[StoredSnapshot]()
        for (tenant, conversation_id), snapshots in stored.items():
            if len(snapshots) == 1 and {one.stored_by for one in snapshots} <= live:
                continue
            entry = await self._owners.get(f"{tenant}.{conversation_id}")
            if entry is not None:
                record = entry.value
                named = record.snapshot.id if record.snapshot and not record.deleted else None
                unrecorded |= {one for one in snapshots if one.id != named}
        for one in unrecorded & self._unrecorded:
            await self._remove(one)
        self._unrecorded = frozenset(unrecorded)

    async def _stored(self) -> dict[tuple[str, str], set[StoredSnapshot]]:
        found: dict[tuple[str, str], set[StoredSnapshot]] = {}
        below = names.object_meta(names.WORKSPACES, "")
        async for subject, _ in self._stores.subjects(names.WORKSPACES, f"{below}>"):
            snapshot = _snapshot_at(subject.removeprefix(below))
            if snapshot is not None:
                found.setdefault((snapshot.tenant, snapshot.conversation_id), set()).add(snapshot)
        return found

    async def _remove(self, snapshot: StoredSnapshot) -> None:
        path = f"{snapshot.tenant}/{snapshot.conversation_id}/{snapshot.id}"
        for below in subjects_below(names.WORKSPACES, f"{snapshot.stored_by}{OWNER_END}{path}"):
            await self._stores.purge(names.WORKSPACES, below)


def _workspace_key(tenant: str, conversation_id: str) -> str:
    return f"{check_token(tenant, 'tenant')}.{check_token(conversation_id, 'conversation_id')}"


def _snapshot_at(place: str) -> StoredSnapshot | None:
    owner, *path = place.split(".")
    if len(path) not in (3, 4) or not all(is_token(token) for token in path):
        return None
    tenant, conversation_id, snapshot, *_ = path
    return StoredSnapshot(tenant, conversation_id, snapshot, owner)


class WorkspaceReports:
    """Records the reports of runners. Any agent may serve them: each report is one compare-and-set."""

    def __init__(self, bus: Bus, secrets: TenantSecrets) -> None:
        self._secrets = secrets
        self._owners = Bucket(bus, names.OWNERS, WorkspaceOwner)
        self._conversations = Bucket(bus, names.CONVERSATIONS, ConversationRecord)
        self._assistants = Bucket(bus, names.ASSISTANTS, Assistant)

    async def on_report(self, report: WorkspaceReport, subject: str) -> WorkspaceReportReply:
        """Record a report. Safe to repeat: a report contains the current state, not a change."""
        *_, runner, tenant, conversation_id = subject.split(".")
        key = _workspace_key(tenant, conversation_id)
        conversation = await self._conversations.get(key) if report.starts else None
        assistant = conversation and await self._assistant_of(tenant, conversation.value)
        access = conversation and await self._repository_of(tenant, conversation.value)
        while True:
            entry = await self._owners.get(key)
            record, verdict = apply_report(entry and entry.value, runner, report, assistant)
            if verdict.mine:
                verdict = verdict.model_copy(update={"repository": access})
            if entry is None or record is None:
                return verdict
            if await self._owners.update(key, record, entry.revision) is not None:
                return verdict

    async def _repository_of(self, tenant: str, conversation: ConversationRecord) -> RepositoryAccess | None:
        source = conversation.source
        if source is None or source.secret is None:
            return source and RepositoryAccess(source=source)
        try:
            values = await self._secrets.values(tenant, (source.secret,), REPOSITORY)
        except SecretUnusable as error:
            return RepositoryAccess(source=source, problem=str(error))
        return RepositoryAccess(source=source, credentials=values[source.secret])

    async def _assistant_of(self, tenant: str, conversation: ConversationRecord) -> Assistant | None:
        entry = await self._assistants.get(f"{tenant}.{conversation.assistant}")
        return entry and entry.value.model_copy(update={"revision": entry.revision})
