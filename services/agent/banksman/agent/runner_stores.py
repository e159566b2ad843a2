"""Removes objects on behalf of runners: the permissions of a runner include storing objects, but no purge."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

from pydantic import BaseModel, ValidationError

from banksman.agent.store_requests import StoreRequests
from banksman.bus.connection import Bus
from banksman.bus.names import OWNERS, WORKSPACES, object_chunks, object_meta
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.objects import OWNER_END, subject_tokens, subjects_below
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Forbidden
from banksman.contracts.ids import check_token, is_token
from banksman.contracts.workspaces import ObjectRemoval, ObjectRemovalReply, SnapshotRef, WorkspaceOwner
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

COLLECT_EVERY_S: Final = 3600.0


class StoredSnapshot(NamedTuple):
    """A snapshot in the store, finished or not."""

    tenant: str
    conversation_id: str
    id: str
    stored_by: str | None
    """The runner that stored the snapshot; None if an older version stored it without an owner."""


class _Description(BaseModel):
    nuid: str


class RunnerStores:
    """The object stores of account RUN; as a context manager it collects abandoned snapshots."""

    def __init__(
        self,
        bus: Bus,
        leases: Callable[[], Iterable[RunnerLease]] = tuple,
        *,
        collect_every_s: float = COLLECT_EVERY_S,
    ) -> None:
        """Create the stores.

        Args:
            bus: The connection.
            leases: Returns the leases of live runners, which collect their own snapshots.
            collect_every_s: Seconds between two collections.
        """
        self._bus = bus
        self._leases = leases
        self._collect_every_s = collect_every_s
        self._stores = StoreRequests(bus)
        self._owners = Bucket(bus, OWNERS, WorkspaceOwner)
        self._unrecorded = frozenset[StoredSnapshot]()
        self._collecting: BackgroundTask | None = None

    async def __aenter__(self) -> Self:
        self._collecting = self._bus.background.repeat("snapshots", self.collect, wait=self._wait)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._collecting is not None:
            await self._collecting.stop()

    async def on_removal(self, request: ObjectRemoval, subject: str) -> ObjectRemovalReply:
        """Remove an object of the runner that the subject names, and the objects below it.

        Raises:
            BadInput: The name has no owner, or a part of the name is not a token.
            Forbidden: The object belongs to another runner.
            Unavailable: The broker does not respond; some objects may be left.
        """
        runner = subject.rpartition(".")[2]
        if request.name.partition(OWNER_END)[0] != runner or not is_token(runner):
            raise Forbidden(f"{request.store}/{request.name} is not an object of {runner}")
        for below in subjects_below(request.store, request.name):
            await self._stores.purge(request.store, below)
        return ObjectRemovalReply(removed=True)

    async def remove_snapshots(
        self, tenant: str, conversation_id: str, recorded: SnapshotRef | None = None
    ) -> None:
        """Remove all snapshots of a conversation, whichever runners stored them.

        Args:
            tenant: The tenant.
            conversation_id: A deleted conversation.
            recorded: The snapshot that the record of the workspace names, which may have no owner.

        Raises:
            Unavailable: The broker does not respond; some objects may be left.
        """
        for subject in (object_meta, object_chunks):
            below = f"*.{check_token(tenant, 'tenant')}.{check_token(conversation_id, 'conversation_id')}.>"
            await self._stores.purge(WORKSPACES, subject(WORKSPACES, below))
        if recorded is not None and recorded.stored_by is None:
            await self._remove(StoredSnapshot(tenant, conversation_id, recorded.id, None))

    async def collect(self) -> None:
        """Remove the snapshots that no record named at the last collection, and no record names now.

        A live runner collects its own snapshots. This removes those of runners that have left, and those that
        a snapshot of another runner has replaced.

        Raises:
            Unavailable: The broker does not respond.
        """
        stored = await self._stored()
        live = {lease.runner for lease in self._leases()}
        unrecorded = set[StoredSnapshot]()
        for (tenant, conversation_id), snapshots in stored.items():
            # A snapshot without an owner stays recorded until its workspace has another one or is deleted.
            if len(snapshots) == 1 and {one.stored_by for one in snapshots} <= {None, *live}:
                continue
            entry = await self._owners.get(f"{tenant}.{conversation_id}")
            if entry is not None:
                record = entry.value
                named = record.snapshot.id if record.snapshot and not record.deleted else None
                unrecorded |= {one for one in snapshots if one.id != named}
        for one in unrecorded & self._unrecorded:
            await self._remove(one)
        self._unrecorded = frozenset(unrecorded)

    async def _wait(self) -> None:
        await asyncio.sleep(self._collect_every_s)

    async def _stored(self) -> dict[tuple[str, str], set[StoredSnapshot]]:
        """Return the snapshots in the store by tenant and conversation."""
        found: dict[tuple[str, str], set[StoredSnapshot]] = {}
        below = object_meta(WORKSPACES, "")
        async for subject, _ in self._stores.subjects(WORKSPACES, f"{below}>"):
            snapshot = _snapshot_at(subject.removeprefix(below))
            if snapshot is not None:
                found.setdefault((snapshot.tenant, snapshot.conversation_id), set()).add(snapshot)
        return found

    async def _remove(self, snapshot: StoredSnapshot) -> None:
        path = f"{snapshot.tenant}/{snapshot.conversation_id}/{snapshot.id}"
        if snapshot.stored_by is not None:
            for below in subjects_below(WORKSPACES, f"{snapshot.stored_by}{OWNER_END}{path}"):
                await self._stores.purge(WORKSPACES, below)
            return
        await self._remove_without_owner(path)
        number = 0
        while await self._remove_without_owner(f"{path}/{number}"):
            number += 1

    async def _remove_without_owner(self, name: str) -> bool:
        """Remove an object without an owner; return False if it does not exist."""
        subject = object_meta(WORKSPACES, subject_tokens(name))
        message = await self._stores.last(WORKSPACES, subject)
        if message is None:
            return False
        try:
            description = _Description.model_validate_json(message.data)
            chunks = object_chunks(WORKSPACES, check_token(description.nuid, "nuid"))
            await self._stores.purge(WORKSPACES, chunks)
        except ValidationError:
            logger.warning("%s: the description cannot be read; its chunks are not removed", name)
        await self._stores.purge(WORKSPACES, subject)
        return True


def _snapshot_at(place: str) -> StoredSnapshot | None:
    """Return the snapshot to which the object at a place belongs; None if it belongs to none."""
    tokens = place.split(".")
    if len(tokens) == 1:
        try:
            owner, path = None, base64.urlsafe_b64decode(tokens[0]).decode().split("/")
        except (binascii.Error, UnicodeDecodeError):
            return None
    else:
        owner, *path = tokens
    if len(path) not in (3, 4) or not all(is_token(token) for token in path):
        return None
    tenant, conversation_id, snapshot, *_ = path
    return StoredSnapshot(tenant, conversation_id, snapshot, owner)
