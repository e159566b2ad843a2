"""One workspace of this runner: its state in this process, its stored record, and reports about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.workspaces import (
    ObjectRemoval,
    ObjectRemovalReply,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.runs.runners.workspaces import LocalWorkspace
from banksman.runtime.backoff import Backoff, retry
from banksman.runtime.durable_files import replace_file

logger = logging.getLogger(__name__)
REPLY_S = 5.0
REPEATED_FOR_S = 15.0
"""Seconds for which a report that a call waits for is repeated. After a restart of the broker, runners may be
connected a second before the first agent."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
REMOVAL_REPLY_S = 10.0


class WorkspaceMoved(Unavailable):
    """The workspace moved after the request was placed; the sender places it again."""

    def __init__(self) -> None:
        super().__init__("the workspace has moved since it was placed")


class SnapshotLost(Exception):
    """A snapshot cannot be restored, so the workspace is empty. The message is for the model."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The workspace moved to this runner, and its snapshot could not be restored: {reason}. "
            "The workspace is empty now."
        )


class SourceFailed(SnapshotLost):
    """The repository or archive of a new workspace cannot be fetched now. The message is for the model."""

    def __init__(self, repository: str, reason: str) -> None:
        Exception.__init__(
            self,
            f"The workspace starts from {repository}, which could not be fetched: {reason}. "
            "The next call tries it again.",
        )


class WorkspaceRecord(BaseModel):
    """The state of a workspace, stored as JSON beside its files in the volume of the runner."""

    model_config = ConfigDict(frozen=True)

    term: int = 0
    """0 while the files of a term are incomplete."""
    generation: int = 0
    snapshot: str | None = None
    """Id of the last snapshot that the platform has recorded."""
    unfinished: str | None = None
    """Id of a snapshot that the platform has not recorded yet."""
    lost: str | None = None
    """Why the snapshot could not be restored; None if it was restored, or the loss has been reported."""


@dataclass
class WorkspaceEntry:
    tenant: str
    conversation: str
    state: LocalWorkspace = field(default_factory=LocalWorkspace)
    snapshot: str | None = None
    unfinished: str | None = None
    lost: str | None = None
    unconfirmed: bool = False
    """True while the platform's record is unknown: after a start, and after a report without a reply.

    The files count as unchanged until then, so that the next change is reported before it happens.
    """
    last_used: float = 0.0
    """Time of the event loop's clock when the last request ended."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Protects the directory while it is created, archived or deleted, and the order of reports.

    Taken after the turn of the workspace (`CallTurns.workspace`), never before it.
    """

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.conversation

    @property
    def record(self) -> WorkspaceRecord:
        return WorkspaceRecord(
            term=self.state.term,
            generation=self.state.generation,
            snapshot=self.snapshot,
            unfinished=self.unfinished,
            lost=self.lost,
        )


@dataclass(frozen=True, slots=True)
class WorkspaceRecords:
    directory: Path

    def load(self) -> Iterator[WorkspaceEntry]:
        """Yield the entries that earlier processes of this runner stored.

        A record does not state whether the workspace has changed, because the platform's record may have
        changed since.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for path in self.directory.glob("*.json"):
            tenant, _, conversation = path.stem.partition(".")
            record = _read(path)
            yield WorkspaceEntry(
                tenant,
                conversation,
                LocalWorkspace(record.term, record.generation),
                record.snapshot,
                record.unfinished,
                record.lost,
                unconfirmed=True,
            )

    async def store(self, entry: WorkspaceEntry) -> None:
        await asyncio.to_thread(self._write, entry, entry.record)

    async def mark_incomplete(self, entry: WorkspaceEntry) -> None:
        """Store a record with term 0, so that a restarted runner treats the existing directory as stale."""
        await asyncio.to_thread(self._write, entry, entry.record.model_copy(update={"term": 0}))

    async def delete(self, entry: WorkspaceEntry) -> None:
        await asyncio.to_thread(self._path(entry).unlink, missing_ok=True)

    def _path(self, entry: WorkspaceEntry) -> Path:
        return self.directory / f"{entry.tenant}.{entry.conversation}.json"

    def _write(self, entry: WorkspaceEntry, record: WorkspaceRecord) -> None:
        replace_file(self._path(entry), record.model_dump_json())


def _read(path: Path) -> WorkspaceRecord:
    """An unreadable record counts as an empty one, which makes the files stale."""
    try:
        return WorkspaceRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        logger.error("%s: cannot be read: %s", path.name, error)
        return WorkspaceRecord()


class Reports:
    """The only way by which a runner reads or changes the platform's record of its workspaces."""

    def __init__(self, bus: Bus, runner: str) -> None:
        self._bus = bus
        self._runner = runner

    async def send(
        self, tenant: str, conversation_id: str, report: WorkspaceReport, *, repeats: bool = False
    ) -> WorkspaceReportReply:
        """Send a report; raise `Unavailable` if no valid reply arrives in time.

        With `repeats`, it is sent again for `REPEATED_FOR_S` until a reply arrives, which is safe: a report
        contains the current state.
        """
        if not repeats:
            return await self._send(tenant, conversation_id, report)
        return await retry(
            lambda: self._send(tenant, conversation_id, report),
            again=lambda error: isinstance(error, Unavailable),
            backoff=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            budget_s=REPEATED_FOR_S,
            failure=f"{tenant}/{conversation_id}: the report of its workspace has failed",
        )

    async def _send(self, tenant: str, conversation_id: str, report: WorkspaceReport) -> WorkspaceReportReply:
        subject = subjects.workspace_report(self._runner, tenant, conversation_id)
        payload = report.model_dump_json().encode()
        reply = await self._bus.request(subject, payload, REPLY_S, until_reconnect=True)
        try:
            return WorkspaceReportReply.model_validate_json(reply)
        except ValidationError as error:
            raise Unavailable("the reply to a workspace report is not valid") from error


def objects_of(bus: Bus, store: Literal["outputs", "workspaces"], runner: str) -> Objects:
    """Return a store with objects of a runner. Its permissions include no purge, so an agent removes them."""

    async def remove(name: str) -> None:
        request = ObjectRemoval(store=store, name=name)
        reply = await bus.request(
            subjects.object_removal(runner), request.model_dump_json().encode(), REMOVAL_REPLY_S
        )
        try:
            ObjectRemovalReply.model_validate_json(reply)
        except ValidationError as error:
            raise Unavailable(f"{store}/{name} was not removed: {reply[:200]!r}") from error

    return Objects(bus, store, remove=remove)
