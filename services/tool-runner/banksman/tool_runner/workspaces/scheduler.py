"""Schedules snapshots of changed workspaces, and removes workspaces that this runner no longer has."""

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
from banksman.tool_runner.workspaces.archive_writing import SnapshotRefused
from banksman.tool_runner.workspaces.registry import HeldWorkspace, WorkspaceRegistry
from banksman.tool_runner.workspaces.reports import Reports
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
    """Looks after the workspaces of one runner process: snapshots, evictions, and removals."""

    registry: WorkspaceRegistry
    snapshots: Snapshots
    reports: Reports
    settings: SnapshotSettings
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_SNAPSHOTS))
    _in_progress: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _refused: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Edit count of each workspace whose snapshot was refused; it is tried again after the next edit."""

    async def run(self) -> NoReturn:
        """Check all workspaces repeatedly until cancelled."""
        # A restart after an exception: snapshots that were cancelled before they began are still listed.
        self._in_progress.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_ownership(), name="workspace ownership")
            tasks.create_task(self._collect_repeatedly(), name="interrupted snapshots")
            while True:
                for held in self.registry:
                    if self._is_due(held):
                        self._in_progress.add(held.key)
                        name = f"snapshot {held.conversation}"
                        tasks.create_task(self._snapshot_when_idle(held), name=name)
                    elif held.unconfirmed:
                        await self._confirm(held)
                    elif held.lost is not None:
                        await self._report_loss(held)
                    elif self._may_evict(held):
                        await self._evict(held)
                await asyncio.sleep(min(CHECK_EVERY_S, self.settings.idle_s / 2 + MIN_CHECK_EVERY_S))

    async def snapshot_all(self) -> None:
        """Snapshot every changed workspace within `drain_s`, after the runner has stopped taking calls."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s), asyncio.TaskGroup() as tasks:
                for held in self.registry:
                    tasks.create_task(self._snapshot_at_end(held))
        if left := [held.conversation for held in self.registry if held.state.changed]:
            logger.warning("%d workspaces have changes that no snapshot contains: %s", len(left), left[:20])

    async def _snapshot_at_end(self, held: HeldWorkspace) -> None:
        if held.unconfirmed:
            await self._confirm(held)
        if held.state.changed:
            await self._try_snapshot(held)

    async def forget(self, tenant: str, conversation: str, snapshot: SnapshotRef | None) -> None:
        """Delete the workspace of a deleted conversation and its snapshots.

        Raises:
            Unavailable: a call runs in the workspace, or a snapshot could not be deleted.
            OSError: files could not be deleted.
        """
        held = self.registry.get(tenant, conversation)
        snapshots = {held.snapshot, held.unfinished, snapshot and snapshot.id} - {None}
        if not await self.registry.drop(held):
            raise Unavailable("a call runs in the workspace")
        for each in snapshots:
            if each is not None:
                await self.snapshots.remove(tenant, conversation, each)

    def _is_due(self, held: HeldWorkspace) -> bool:
        state = held.state
        idle = asyncio.get_running_loop().time() - held.last_used >= self.settings.idle_s
        known = held.key in self._in_progress or self._refused.get(held.key) == state.edits
        return state.changed and not state.users and idle and not known

    def _may_evict(self, held: HeldWorkspace) -> bool:
        if self.settings.evict_after_s is None or held.state.users:
            return False
        idle_s = asyncio.get_running_loop().time() - held.last_used
        is_due = idle_s >= self.settings.evict_after_s
        return is_due and self.registry.workspaces.exists(*held.key)

    async def _evict(self, held: HeldWorkspace) -> None:
        try:
            if await self.registry.evict(held):
                logger.info("%s: evicted; only the snapshot has its files now", held.conversation)
        except OSError as error:
            logger.error("%s: not evicted: %s", held.conversation, error)

    async def _snapshot_when_idle(self, held: HeldWorkspace) -> None:
        try:
            await self._try_snapshot(held)
        finally:
            self._in_progress.discard(held.key)

    async def _try_snapshot(self, held: HeldWorkspace) -> None:
        """Snapshot a workspace and report it; after a failure, which is logged, it stays changed."""
        name = held.conversation
        try:
            async with self._slots:
                await self._snapshot(held)
        except SnapshotRefused as refused:
            self._refused[held.key] = held.state.edits
            logger.warning("%s: cannot be snapshotted: %s", name, refused)
        except (BanksmanError, OSError) as error:
            # The workspace counts as just used, so that the next attempt waits for another idle period.
            held.last_used = asyncio.get_running_loop().time()
            logger.warning("%s: the snapshot failed: %s", name, error)

    async def _snapshot(self, held: HeldWorkspace) -> None:
        state = held.state
        async with contextlib.AsyncExitStack() as archive:
            async with held.lock:
                if state.users or not state.changed:
                    return
                await self._remove_unfinished(held)
                edits, term, generation = state.edits, state.term, state.generation
                directory = self.registry.workspaces.get(*held.key).directory
                archived = await archive.enter_async_context(self.snapshots.archived(directory))
                # Stored before the upload: after a crash, the next process removes the parts.
                held.unfinished = archived.id
                await self.registry.store(held)
            # The upload may take long. Calls may run meanwhile: the archive is already complete.
            stored = await self.snapshots.store(*held.key, archived, term=term, generation=generation)
        async with held.lock:
            replaced = held.snapshot
            report = self._report(held, snapshot=stored, complete=state.edits == edits)
            verdict = await self._report_snapshot(held, report)
        await self._remove_unneeded(held, stored, verdict, replaced)

    def _report(self, held: HeldWorkspace, **changes: object) -> WorkspaceReport:
        state = held.state
        report = WorkspaceReport(
            runner_epoch=self.registry.runner_epoch, term=state.term, generation=state.generation
        )
        return report.model_copy(update=changes)

    async def _report_snapshot(self, held: HeldWorkspace, report: WorkspaceReport) -> WorkspaceReportReply:
        """Report a snapshot.

        If no reply arrives, the platform may have recorded the snapshot. Then the workspace counts as
        unchanged, so that its next change is reported before it happens.
        """
        try:
            return await self.registry.report(held, report)
        except BanksmanError:
            held.unconfirmed = True
            held.state.changed = held.state.changed and not report.complete
            raise

    async def _remove_unneeded(
        self, held: HeldWorkspace, stored: SnapshotRef, verdict: WorkspaceReportReply, replaced: str | None
    ) -> None:
        """Delete the replaced snapshot, or the new one if the platform did not record it."""
        recorded = verdict.mine and verdict.snapshot is not None and verdict.snapshot.id == stored.id
        if not recorded:
            self._refused[held.key] = held.state.edits
        unneeded = replaced if recorded else stored.id
        if unneeded is not None:
            await self.snapshots.remove(*held.key, unneeded)
        if not verdict.mine:
            await self.registry.drop(held)

    async def _remove_unfinished(self, held: HeldWorkspace) -> None:
        """Delete the snapshot of an interrupted attempt, unless the platform has recorded it."""
        unfinished = held.unfinished
        if unfinished is None:
            return
        await self.registry.report(held, self._report(held))
        if held.snapshot != unfinished:
            await self.snapshots.remove(*held.key, unfinished)
            held.unfinished = None

    async def _confirm(self, held: HeldWorkspace) -> None:
        """Read the platform's record after a report that got no reply."""
        try:
            async with held.lock:
                await self.registry.report(held, self._report(held))
        except (BanksmanError, OSError) as error:
            logger.warning("%s: whether its snapshot is recorded is unknown: %s", held.conversation, error)

    async def _check_ownership(self) -> None:
        """Find the workspaces that moved or were deleted while this runner was away."""
        slots = asyncio.Semaphore(CONCURRENT_REPORTS)
        async with asyncio.TaskGroup() as tasks:
            for held in self.registry:
                tasks.create_task(self._check_owner(held, slots))

    async def _check_owner(self, held: HeldWorkspace, slots: asyncio.Semaphore) -> None:
        async with slots:
            report, verdict = await self._reported(held)
            try:
                # A request of a newer term may have arrived meanwhile; its files must stay.
                stale = not verdict.mine and held.state.term == report.term
                if stale and await self.registry.drop(held):
                    logger.info("%s: removed files of an earlier term", held.conversation)
            except OSError as error:
                logger.error("%s: files of an earlier term are not removed: %s", held.conversation, error)

    async def _reported(self, held: HeldWorkspace) -> tuple[WorkspaceReport, WorkspaceReportReply]:
        """Report a workspace until the platform replies."""
        while True:
            async with held.lock:
                report = self._report(held)
                try:
                    return report, await self.registry.report(held, report)
                except (BanksmanError, OSError) as error:
                    logger.warning("%s: its owner is unknown: %s", held.conversation, error)
            await asyncio.sleep(REPORT_RETRY_S)

    async def _report_loss(self, held: HeldWorkspace) -> None:
        try:
            async with held.lock:
                await self.registry.report(held, self._report(held, lost=held.lost))
                held.lost = None
                await self.registry.store(held)
        except (BanksmanError, OSError) as error:
            logger.warning("%s: its loss is not reported yet: %s", held.conversation, error)

    async def _collect_repeatedly(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.settings.collect_every_s)
            try:
                await self.collect(datetime.now(UTC) - GARBAGE_AFTER)
            except BanksmanError as error:
                logger.warning("interrupted snapshots were not collected: %s", error)

    async def collect(self, before: datetime) -> None:
        """Delete snapshots of any runner that started before `before` and that the platform has not recorded.

        Raises:
            Unavailable: the store or the platform does not reply.
        """
        query = WorkspaceReport(runner_epoch=self.registry.runner_epoch, term=0)
        for (tenant, conversation), snapshots in (await self.snapshots.stored_before(before)).items():
            verdict = await self.reports.send(tenant, conversation, query)
            if verdict.known:
                recorded = verdict.snapshot and verdict.snapshot.id
                for snapshot in snapshots - {recorded}:
                    await self.snapshots.remove_leftovers(tenant, conversation, snapshot)
