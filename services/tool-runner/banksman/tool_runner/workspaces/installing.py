"""Brings the files of a term to this runner: from a snapshot, or the first files of the assistant."""

from __future__ import annotations

import asyncio
import logging

from banksman.contracts.errors import Unavailable
from banksman.contracts.workspaces import AssistantFile, SnapshotRef, WorkspacePlacement, WorkspaceReport
from banksman.runtime.failpoints import reach
from banksman.tool_runner.workspaces.archive_writing import SnapshotRefused
from banksman.tool_runner.workspaces.entry import (
    SnapshotLost,
    WorkspaceEntry,
    WorkspaceMoved,
    WorkspaceRecords,
)
from banksman.tool_runner.workspaces.files import PathRefused, write_whole
from banksman.tool_runner.workspaces.reports import Reports
from banksman.tool_runner.workspaces.snapshots import Snapshots
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

logger = logging.getLogger(__name__)


class Installer:
    """Installs the files of workspaces. The caller holds the lock of the entry."""

    def __init__(
        self,
        workspaces: WorkspaceStore,
        snapshots: Snapshots,
        reports: Reports,
        records: WorkspaceRecords,
        runner_epoch: int,
    ) -> None:
        self._workspaces = workspaces
        self._snapshots = snapshots
        self._reports = reports
        self._records = records
        self._runner_epoch = runner_epoch

    async def install(self, entry: WorkspaceEntry, place: WorkspacePlacement, *, repeats: bool) -> None:
        """Replace the directory by the files of the term of `place`; for `repeats`, see `Reports.send`.

        The stored record marks the directory as incomplete meanwhile. After a crash, the next process
        installs the files again.

        Raises:
            SnapshotLost: the snapshot cannot be restored; the directory is empty.
            WorkspaceMoved: the workspace now has another term.
            Unavailable: the platform does not reply.
            OSError: the files cannot be written.
        """
        first_files = await self._report_arrival(entry, place, repeats=repeats)
        await self._records.mark_incomplete(entry)
        await self._workspaces.delete(*entry.key)
        lost = None
        if place.snapshot is not None:
            lost = await self._restore(entry, place.snapshot)
        if place.snapshot is None or lost is not None:
            await asyncio.to_thread(self._create, entry, first_files)
            await reach("runner.workspace_made")
        entry.state.restored(place)
        entry.snapshot = place.snapshot.id if place.snapshot and lost is None else None
        entry.lost = lost
        await self._records.store(entry)
        if lost is not None:
            raise SnapshotLost(lost)

    async def _report_arrival(
        self, entry: WorkspaceEntry, place: WorkspacePlacement, *, repeats: bool
    ) -> tuple[AssistantFile, ...]:
        """Report that this runner has no files of the term, and return the files that a new workspace gets.

        Only a workspace that has never changed starts with files. If files of the same term were lost with
        their volume, the platform's record starts another term and states the loss.
        """
        starts = place.generation == 0 and place.snapshot is None
        generation = place.generation
        while True:
            report = WorkspaceReport(
                runner_epoch=self._runner_epoch,
                term=place.term,
                starts=starts,
                missing=True,
                missing_at=generation,
            )
            verdict = await self._reports.send(*entry.key, report, repeats=repeats)
            if not verdict.mine:
                entry.state.past = place.term
                raise WorkspaceMoved
            if not verdict.dirty or verdict.generation <= generation:
                return verdict.files
            # The request was placed before the last change. Nothing changes now: the caller has the lock.
            generation = verdict.generation

    def _create(self, entry: WorkspaceEntry, first_files: tuple[AssistantFile, ...]) -> None:
        """Create the directory with its first files, which do not count as a change."""
        workspace = self._workspaces.get(*entry.key)
        for file in first_files:
            try:
                write_whole(
                    workspace.directory, file.path, file.data, workspace.identity, executable=file.executable
                )
            except PathRefused as refused:
                raise Unavailable(f"a file of the assistant cannot be written: {refused}") from refused

    async def _restore(self, entry: WorkspaceEntry, snapshot: SnapshotRef) -> str | None:
        """Restore a snapshot; return the reason if it is refused, else None."""
        target = self._workspaces.path_of(*entry.key)
        try:
            await self._snapshots.restore(*entry.key, snapshot, target)
        except SnapshotRefused as refused:
            logger.error("%s: snapshot %s was not restored: %s", entry.conversation, snapshot.id, refused)
            return str(refused)
        logger.info("%s: restored from snapshot %s", entry.conversation, snapshot.id)
        return None
