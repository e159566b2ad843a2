"""The workspaces of this runner: the term of each, and whether it changed since its last snapshot."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.contracts.assistant_files import AssistantFile
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import check_token
from banksman.contracts.workspaces import (
    SnapshotRef,
    WorkspacePlacement,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.runs.workspaces import LocalWorkspace
from banksman.runtime.failpoints import reach
from banksman.tool_runner.workspaces.archive_writing import SnapshotRefused
from banksman.tool_runner.workspaces.files import PathRefused, write_whole
from banksman.tool_runner.workspaces.reports import Reports
from banksman.tool_runner.workspaces.snapshots import Snapshots
from banksman.tool_runner.workspaces.turns import Turns
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

logger = logging.getLogger(__name__)


class _Record(BaseModel):
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
    """Why the snapshot could not be restored; None when it was restored or the loss is reported."""


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


@dataclass
class WorkspaceEntry:
    """The state of one workspace in this process."""

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

    Taken after the turn of the workspace (`Turns.workspace`), never before it.
    """

    @property
    def key(self) -> tuple[str, str]:
        """Tenant and conversation."""
        return self.tenant, self.conversation


class WorkspaceRegistry:
    """All workspaces of this runner, by tenant and conversation."""

    def __init__(
        self,
        workspaces: WorkspaceStore,
        snapshots: Snapshots,
        reports: Reports,
        turns: Turns,
        *,
        runner_epoch: int,
    ) -> None:
        self.workspaces = workspaces
        self.runner_epoch = runner_epoch
        self._snapshots = snapshots
        self._reports = reports
        self._turns = turns
        self._records = workspaces.root / ".records"
        self._entries: dict[tuple[str, str], WorkspaceEntry] = {}

    def load(self) -> None:
        """Read the records that earlier processes of this runner stored.

        A record does not state whether the workspace has changed, because the platform's record may have
        changed since.

        Raises:
            OSError: the directory cannot be created or read.
        """
        self._records.mkdir(mode=0o700, exist_ok=True)
        for path in self._records.glob("*.json"):
            tenant, _, conversation = path.stem.partition(".")
            record = _read(path)
            state = LocalWorkspace(record.term, record.generation)
            self._entries[tenant, conversation] = WorkspaceEntry(
                tenant, conversation, state, record.snapshot, record.unfinished, record.lost, unconfirmed=True
            )
        for tenant, conversation in self.workspaces.stored():
            # A version without records stored this workspace; it knew neither moves nor snapshots.
            if (tenant, conversation) not in self._entries:
                key, state = (tenant, conversation), LocalWorkspace(term=1)
                self._entries[key] = WorkspaceEntry(*key, state, unconfirmed=True)

    def __iter__(self) -> Iterator[WorkspaceEntry]:
        return iter(tuple(self._entries.values()))

    def get(self, tenant: str, conversation: str) -> WorkspaceEntry:
        """Return the entry of a workspace; a workspace without one gets an empty entry.

        Raises:
            BadInput: an id contains a character that ids do not allow.
        """
        key = (check_token(tenant, "tenant"), check_token(conversation, "conversation_id"))
        return self._entries.setdefault(key, WorkspaceEntry(*key))

    def admits(self, tenant: str, conversation: str, place: WorkspacePlacement) -> bool:
        """Return whether a request may run here; if not, its sender places the workspace again."""
        entry = self.get(tenant, conversation)
        return entry.state.admits(place) and not self._names_an_older_snapshot(entry, place)

    def _names_an_older_snapshot(self, entry: WorkspaceEntry, place: WorkspacePlacement) -> bool:
        """Return whether an evicted workspace would be restored from a snapshot that is already replaced."""
        if place.term != entry.state.term or entry.snapshot == (place.snapshot and place.snapshot.id):
            return False
        return not self.workspaces.exists(*entry.key)

    def is_empty(self, tenant: str, conversation: str, place: WorkspacePlacement) -> bool:
        """Return whether a workspace was never used, so that listing it needs no directory."""
        state = self.get(tenant, conversation).state
        return place.snapshot is None and (
            state.term < place.term or not self.workspaces.exists(tenant, conversation)
        )

    def enter(self, tenant: str, conversation: str) -> WorkspaceEntry:
        """Count an admitted request as a user of the workspace, which then stays here until `leave`."""
        entry = self.get(tenant, conversation)
        entry.state.users += 1
        return entry

    def leave(self, entry: WorkspaceEntry) -> None:
        """Count the end of a request that called `enter`."""
        entry.state.users -= 1
        entry.last_used = asyncio.get_running_loop().time()

    async def prepare(
        self, entry: WorkspaceEntry, place: WorkspacePlacement, *, changes: bool, has_turn: bool
    ) -> None:
        """Bring the files of the request's term to this runner, and report the first change of a workspace.

        Args:
            entry: The workspace, after `enter`.
            place: Where the request was placed.
            changes: Whether the request may change files.
            has_turn: Whether the caller holds the workspace's turn.

        Raises:
            SnapshotLost: the files cannot be restored; the next request finds an empty workspace.
            WorkspaceMoved: the workspace is of another term now.
            Unavailable: the platform does not reply.
            OSError: the files cannot be written.
        """
        async with AsyncExitStack() as locks:
            await locks.enter_async_context(entry.lock)
            if not has_turn and self._replaces_files(entry, place):
                # A call of an earlier term may still run in the files that are replaced. The turn is taken
                # before the lock: in the other order, this request and a call that holds the turn would wait
                # for each other.
                await locks.aclose()
                await locks.enter_async_context(self._turns.workspace(*entry.key))
                await locks.enter_async_context(entry.lock)
            if not entry.state.admits(place):
                raise WorkspaceMoved
            if place.term > entry.state.term or not self.workspaces.exists(*entry.key):
                await self._install(entry, place)
            if changes:
                await self._begin_change(entry)

    def _replaces_files(self, entry: WorkspaceEntry, place: WorkspacePlacement) -> bool:
        """Return whether `_install` would delete files of an earlier term."""
        newer = entry.state.admits(place) and place.term > entry.state.term
        return newer and self.workspaces.exists(*entry.key)

    async def report(self, entry: WorkspaceEntry, report: WorkspaceReport) -> WorkspaceReportReply:
        """Send a report and adopt the state of the platform's record. The caller holds `entry.lock`.

        Raises:
            Unavailable: no reply; whether the report was received is unknown.
        """
        verdict = await self._reports.send(*entry.key, report)
        if verdict.mine and verdict.known:
            entry.state.apply(verdict)
            entry.snapshot = verdict.snapshot and verdict.snapshot.id
            if entry.unfinished == entry.snapshot:
                entry.unfinished = None
            entry.unconfirmed = False
            await self.store(entry)
        return verdict

    async def _begin_change(self, entry: WorkspaceEntry) -> None:
        """Allow the files to change. The platform's record must state the change before it happens.

        Otherwise another runner could take over the workspace from a snapshot that misses the change.
        """
        state = entry.state
        if (report := state.report_of_change(self.runner_epoch)) is not None:
            verdict = await self.report(entry, report)
            if not verdict.known:
                state.changed = True
            if not verdict.mine:
                state.past = state.term
                raise WorkspaceMoved
            if not state.changed:
                raise Unavailable("the workspace is at a later change now")
        state.edits += 1

    async def store(self, entry: WorkspaceEntry) -> None:
        """Store the record of a workspace on disk."""
        await asyncio.to_thread(self._write, entry, _record_of(entry))

    async def drop(self, entry: WorkspaceEntry) -> bool:
        """Delete files and record of a workspace that another runner has; return False while it is in use."""
        if entry.state.users:
            return False
        async with entry.lock:
            # A request may have entered while this call waited for the lock.
            if entry.state.users:
                return False
            await self.workspaces.delete(*entry.key)
            await asyncio.to_thread(self._path(entry).unlink, missing_ok=True)
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
        return True

    async def evict(self, entry: WorkspaceEntry) -> bool:
        """Delete files that a snapshot contains; return False if the workspace is in use or changed."""
        state = entry.state
        if state.users or state.changed or entry.snapshot is None or entry.lock.locked():
            return False
        async with entry.lock:
            await self.workspaces.delete(*entry.key)
        return True

    async def _install(self, entry: WorkspaceEntry, place: WorkspacePlacement) -> None:
        """Replace the directory by the files of a term.

        The stored record marks the directory as incomplete meanwhile. After a crash, the next process
        installs the files again.
        """
        first_files = await self._report_arrival(entry, place)
        await self._mark_incomplete(entry)
        await self.workspaces.delete(*entry.key)
        lost = None
        if place.snapshot is not None:
            lost = await self._restore(entry, place.snapshot)
        if place.snapshot is None or lost is not None:
            await asyncio.to_thread(self._create, entry, first_files)
            await reach("runner.workspace_made")
        entry.state.restored(place)
        entry.snapshot = place.snapshot.id if place.snapshot and lost is None else None
        entry.lost = lost
        await self.store(entry)
        if lost is not None:
            raise SnapshotLost(lost)

    async def _report_arrival(
        self, entry: WorkspaceEntry, place: WorkspacePlacement
    ) -> tuple[AssistantFile, ...]:
        """Report that this runner has no files of the term, and return the files that a new workspace gets.

        Only a workspace that has never changed starts with files. If files of the same term were lost with
        their volume, the platform's record starts another term and states the loss.
        """
        starts = place.generation == 0 and place.snapshot is None
        report = WorkspaceReport(runner_epoch=self.runner_epoch, term=place.term, starts=starts, missing=True)
        verdict = await self._reports.send(*entry.key, report)
        if not verdict.mine:
            entry.state.past = place.term
            raise WorkspaceMoved
        return verdict.files

    def _create(self, entry: WorkspaceEntry, first_files: tuple[AssistantFile, ...]) -> None:
        """Create the directory with its first files, which do not count as a change."""
        workspace = self.workspaces.get(*entry.key)
        for file in first_files:
            try:
                write_whole(
                    workspace.directory, file.path, file.data, workspace.identity, executable=file.executable
                )
            except PathRefused as refused:
                raise Unavailable(f"a file of the assistant cannot be written: {refused}") from refused

    async def _mark_incomplete(self, entry: WorkspaceEntry) -> None:
        """Store a record with term 0, so that a restarted runner treats the existing directory as stale."""
        record = _record_of(entry).model_copy(update={"term": 0})
        await asyncio.to_thread(self._write, entry, record)

    async def _restore(self, entry: WorkspaceEntry, snapshot: SnapshotRef) -> str | None:
        """Restore a snapshot; return the reason if it is refused, else None."""
        target = self.workspaces.path_of(*entry.key)
        try:
            await self._snapshots.restore(*entry.key, snapshot, target)
        except SnapshotRefused as refused:
            logger.error("%s: snapshot %s was not restored: %s", entry.conversation, snapshot.id, refused)
            return str(refused)
        logger.info("%s: restored from snapshot %s", entry.conversation, snapshot.id)
        return None

    def _path(self, entry: WorkspaceEntry) -> Path:
        return self._records / f"{entry.tenant}.{entry.conversation}.json"

    def _write(self, entry: WorkspaceEntry, record: _Record) -> None:
        path = self._path(entry)
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(record.model_dump_json())
            file.flush()
            # Without fsync, a power cut after the rename can leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)


def _record_of(entry: WorkspaceEntry) -> _Record:
    state = entry.state
    return _Record(
        term=state.term,
        generation=state.generation,
        snapshot=entry.snapshot,
        unfinished=entry.unfinished,
        lost=entry.lost,
    )


def _read(path: Path) -> _Record:
    """Read a record. An unreadable record counts as an empty one, which makes the files stale."""
    try:
        return _Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        logger.error("%s: cannot be read: %s", path.name, error)
        return _Record()
