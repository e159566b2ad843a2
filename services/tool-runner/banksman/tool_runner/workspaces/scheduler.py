"""Schedules snapshots of changed workspaces, and removes workspaces that other runners have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.workspaces import SnapshotRef, WorkspaceReport, WorkspaceReportReply
from banksman.tool_runner.settings import SnapshotSettings
from banksman.tool_runner.workspaces.archive import SnapshotRefused
from banksman.tool_runner.workspaces.entry import Reports, WorkspaceEntry
from banksman.tool_runner.workspaces.registry import WorkspaceRegistry
from banksman.tool_runner.workspaces.snapshots import Snapshots

logger = logging.getLogger(__name__)

CONCURRENT_SNAPSHOTS = 2
CONCURRENT_REPORTS = 8
REPORT_RETRY_S = 1.0
CHECK_EVERY_S, MIN_CHECK_EVERY_S = 1.0, 0.05
GARBAGE_AFTER = timedelta(hours=1)
"""Age at which a snapshot that the platform has not recorded counts as interrupted."""


@dataclass
class SnapshotScheduler:
    registry: WorkspaceRegistry
    snapshots: Snapshots
    reports: Reports
    settings: SnapshotSettings
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_SNAPSHOTS))
    _in_progress: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _refused: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Edit count of each workspace whose snapshot was refused; it is tried again after the next edit."""
    _partial: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Edit count of each workspace at its last snapshot."""
    _ending: bool = False
    """Whether the runner has stopped taking calls."""

    async def run(self) -> NoReturn:
        # `run` is called again after an exception. Tasks that were cancelled before they began have not
        # removed their keys.
        self._in_progress.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_ownership(), name="workspace ownership")
            tasks.create_task(self._collect_repeatedly(), name="interrupted snapshots")
            while True:
                for entry in self.registry:
                    if self._is_due(entry):
                        self._in_progress.add(entry.key)
                        name = f"snapshot {entry.conversation}"
                        tasks.create_task(self._snapshot_when_idle(entry), name=name)
                    elif entry.unconfirmed:
                        await self._confirm(entry)
                    elif entry.lost is not None:
                        await self._report_loss(entry)
                    elif self._may_evict(entry):
                        await self._evict(entry)
                await asyncio.sleep(min(CHECK_EVERY_S, self.settings.idle_s / 2 + MIN_CHECK_EVERY_S))

    async def snapshot_all(self) -> None:
        """Snapshot every changed workspace within `drain_s`, after the runner has stopped taking calls."""
        self._ending = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s), asyncio.TaskGroup() as tasks:
                for entry in self.registry:
                    tasks.create_task(self._snapshot_at_end(entry))
        if left := [entry.conversation for entry in self.registry if entry.state.changed]:
            logger.warning("%d workspaces have changes that no snapshot contains: %s", len(left), left[:20])

    async def _snapshot_at_end(self, entry: WorkspaceEntry) -> None:
        if entry.unconfirmed:
            await self._confirm(entry)
        if entry.state.changed:
            await self._try_snapshot(entry)

    async def forget(self, tenant: str, conversation: str, snapshot: SnapshotRef | None) -> None:
        """Delete the workspace of a deleted conversation and the snapshots that this runner stored.

        Raises:
            Unavailable: a call runs in the workspace, or a snapshot could not be deleted.
        """
        entry = self.registry.get(tenant, conversation)
        snapshots = {entry.snapshot, entry.unfinished, snapshot and snapshot.id} - {None}
        if not await self.registry.drop(entry):
            raise Unavailable("a call runs in the workspace")
        for each in snapshots:
            if each is not None:
                await self.snapshots.remove(tenant, conversation, each)

    def _is_due(self, entry: WorkspaceEntry) -> bool:
        state = entry.state
        idle = asyncio.get_running_loop().time() - entry.last_used >= self.settings.idle_s
        known = entry.key in self._in_progress or self._refused.get(entry.key) == state.edits
        # While processes run, a snapshot is incomplete; another one follows each call, and their end.
        known |= self.registry.runs_processes(entry.key) and self._partial.get(entry.key) == state.edits
        return state.changed and not state.users and idle and not known

    def _may_evict(self, entry: WorkspaceEntry) -> bool:
        if self.settings.evict_after_s is None or entry.state.users:
            return False
        idle_s = asyncio.get_running_loop().time() - entry.last_used
        is_due = idle_s >= self.settings.evict_after_s
        return is_due and self.registry.workspaces.exists(*entry.key)

    async def _evict(self, entry: WorkspaceEntry) -> None:
        try:
            if await self.registry.evict(entry):
                logger.info("%s: evicted; only the snapshot has its files now", entry.conversation)
        except OSError as error:
            logger.error("%s: not evicted: %s", entry.conversation, error)

    async def _snapshot_when_idle(self, entry: WorkspaceEntry) -> None:
        try:
            await self._try_snapshot(entry)
        finally:
            self._in_progress.discard(entry.key)

    async def _try_snapshot(self, entry: WorkspaceEntry) -> None:
        """Snapshot a workspace and report it; after a failure, which is logged, it stays changed."""
        name = entry.conversation
        try:
            async with self._slots:
                await self._snapshot(entry)
        except SnapshotRefused as refused:
            self._refused[entry.key] = entry.state.edits
            logger.warning("%s: cannot be snapshotted: %s", name, refused)
        except (BanksmanError, OSError) as error:
            # The workspace counts as just used, so that the next attempt waits for another idle period.
            entry.last_used = asyncio.get_running_loop().time()
            if self._ending and isinstance(error, Unavailable) and error.no_responders:
                # Agents stop before runners when the whole system stops.
                logger.info("%s: the snapshot is not recorded: all agents have stopped", name)
            else:
                logger.warning("%s: the snapshot failed: %s", name, error)

    async def _snapshot(self, entry: WorkspaceEntry) -> None:
        state = entry.state
        async with contextlib.AsyncExitStack() as archive:
            async with entry.lock:
                if state.users or not state.changed:
                    return
                await self._remove_unfinished(entry)
                # Checked before the files are compressed: without room, the attempt is repeated after each
                # idle period.
                await self.snapshots.room.check(entry.tenant)
                edits, term, generation = state.edits, state.term, state.generation
                directory = self.registry.workspaces.get(*entry.key).directory
                archived = await archive.enter_async_context(self.snapshots.archived(directory))
                # Stored before the upload: after a crash, the next process removes the parts.
                entry.unfinished = archived.id
                await self.registry.store(entry)
            # The upload may take long. Calls may run meanwhile: the archive is already complete.
            stored = await self.snapshots.store(*entry.key, archived, term=term, generation=generation)
        async with entry.lock:
            replaced = entry.snapshot
            quiet = not self.registry.runs_processes(entry.key)
            self._partial[entry.key] = edits
            report = self._report(entry, snapshot=stored, complete=quiet and state.edits == edits)
            verdict = await self._report_snapshot(entry, report)
        await self._remove_unneeded(entry, stored, verdict, replaced)

    def _report(self, entry: WorkspaceEntry, **changes: object) -> WorkspaceReport:
        state = entry.state
        report = WorkspaceReport(
            runner_epoch=self.registry.runner_epoch, term=state.term, generation=state.generation
        )
        return report.model_copy(update=changes)

    async def _report_snapshot(self, entry: WorkspaceEntry, report: WorkspaceReport) -> WorkspaceReportReply:
        """Report a snapshot. Without a reply, the platform may have recorded it.

        Then the workspace counts as unchanged, so that its next change is reported before it happens.
        """
        try:
            return await self.registry.report(entry, report)
        except BanksmanError:
            entry.unconfirmed = True
            entry.state.changed = entry.state.changed and not report.complete
            raise

    async def _remove_unneeded(
        self, entry: WorkspaceEntry, stored: SnapshotRef, verdict: WorkspaceReportReply, replaced: str | None
    ) -> None:
        recorded = verdict.mine and verdict.snapshot is not None and verdict.snapshot.id == stored.id
        if not recorded:
            self._refused[entry.key] = entry.state.edits
        unneeded = replaced if recorded else stored.id
        if unneeded is not None:
            await self.snapshots.remove(*entry.key, unneeded)
        if not verdict.mine:
            await self.registry.drop(entry)

    async def _remove_unfinished(self, entry: WorkspaceEntry) -> None:
        """Delete the snapshot of an interrupted attempt, unless the platform has recorded it."""
        unfinished = entry.unfinished
        if unfinished is None:
            return
        await self.registry.report(entry, self._report(entry))
        if entry.snapshot != unfinished:
            await self.snapshots.remove(*entry.key, unfinished)
            entry.unfinished = None

    async def _confirm(self, entry: WorkspaceEntry) -> None:
        try:
            async with entry.lock:
                await self.registry.report(entry, self._report(entry))
        except (BanksmanError, OSError) as error:
            logger.warning("%s: no agent confirmed its snapshot: %s", entry.conversation, error)

    async def _check_ownership(self) -> None:
        """Find the workspaces that moved or were deleted while this runner was away."""
        slots = asyncio.Semaphore(CONCURRENT_REPORTS)
        async with asyncio.TaskGroup() as tasks:
            for entry in self.registry:
                tasks.create_task(self._check_owner(entry, slots))

    async def _check_owner(self, entry: WorkspaceEntry, slots: asyncio.Semaphore) -> None:
        async with slots:
            report, verdict = await self._reported(entry)
            try:
                # A request of a newer term may have arrived meanwhile; its files must stay.
                stale = not verdict.mine and entry.state.term == report.term
                if stale and await self.registry.drop(entry):
                    logger.info("%s: removed files of an earlier term", entry.conversation)
            except OSError as error:
                logger.error("%s: files of an earlier term are not removed: %s", entry.conversation, error)

    async def _reported(self, entry: WorkspaceEntry) -> tuple[WorkspaceReport, WorkspaceReportReply]:
        while True:
            async with entry.lock:
                report = self._report(entry)
                try:
                    return report, await self.registry.report(entry, report)
                except (BanksmanError, OSError) as error:
                    logger.warning("%s: its owner is unknown: %s", entry.conversation, error)
            await asyncio.sleep(REPORT_RETRY_S)

    async def _report_loss(self, entry: WorkspaceEntry) -> None:
        try:
            async with entry.lock:
                await self.registry.report(entry, self._report(entry, lost=entry.lost))
                entry.lost = None
                await self.registry.store(entry)
        except (BanksmanError, OSError) as error:
            logger.warning("%s: the loss of its files is not reported yet: %s", entry.conversation, error)

    async def _collect_repeatedly(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.settings.collect_every_s)
            try:
                await self.collect(datetime.now(UTC) - GARBAGE_AFTER)
            except BanksmanError as error:
                logger.warning("interrupted snapshots were not collected: %s", error)

    async def collect(self, before: datetime) -> None:
        """Delete snapshots of this runner from before `before` that the platform has not recorded."""
        query = WorkspaceReport(runner_epoch=self.registry.runner_epoch, term=0)
        for (tenant, conversation), snapshots in (await self.snapshots.stored_before(before)).items():
            verdict = await self.reports.send(tenant, conversation, query)
            if verdict.known:
                recorded = verdict.snapshot and verdict.snapshot.id
                for snapshot in snapshots - {recorded}:
                    await self.snapshots.remove(tenant, conversation, snapshot)
