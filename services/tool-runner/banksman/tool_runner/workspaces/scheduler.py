"""Looking after workspaces: copies of those that changed, and an end for those that are no longer here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.workspaces import SnapshotRef, WorkspaceReport, WorkspaceReportReply
from banksman.tool_runner.settings import CopySettings
from banksman.tool_runner.workspaces.archive_writing import CopyRefused
from banksman.tool_runner.workspaces.registry import Holding, WorkspaceRegistry
from banksman.tool_runner.workspaces.reports import Reports
from banksman.tool_runner.workspaces.snapshots import Snapshots

logger = logging.getLogger(__name__)

COPIES_AT_A_TIME = 2
ASKS_AT_A_TIME = 8
ASK_AGAIN_S = 1.0
LOOK_EVERY_S, LEAST_S = 1.0, 0.05
GARBAGE_AFTER = timedelta(hours=1)
"""Age at which a copy that nobody knows of counts as interrupted."""


@dataclass
class SnapshotScheduler:
    """Looks after the workspaces of one runner process."""

    holdings: WorkspaceRegistry
    snapshots: Snapshots
    reports: Reports
    settings: CopySettings
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(COPIES_AT_A_TIME))
    _copying: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _refused: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Changes of a workspace when no copy of it could be made; there is none before it changes again."""

    async def run(self) -> NoReturn:
        """Look after them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_about_all(), name="whose workspaces")
            tasks.create_task(self._collect_for_ever(), name="interrupted copies")
            while True:
                for holding in self.holdings:
                    if self._is_due(holding):
                        self._copying.add(holding.key)
                        tasks.create_task(self._copy_when_idle(holding), name=f"copy {holding.conversation}")
                    elif holding.unsure:
                        await self._reconcile(holding)
                    elif holding.lost is not None:
                        await self._tell_loss(holding)
                    elif self._may_go(holding):
                        await self._evict(holding)
                await asyncio.sleep(min(LOOK_EVERY_S, self.settings.idle_s / 2 + LEAST_S))

    async def copy_all(self) -> None:
        """Copy every workspace that changed; for a runner that takes no calls any more. See `drain_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s), asyncio.TaskGroup() as tasks:
                for holding in self.holdings:
                    tasks.create_task(self._copy_at_end(holding))
        if left := [holding.conversation for holding in self.holdings if holding.desk.changed]:
            logger.warning("%d workspaces have changes that are in no copy: %s", len(left), left[:20])

    async def _copy_at_end(self, holding: Holding) -> None:
        if holding.unsure:
            await self._reconcile(holding)
        if holding.desk.changed:
            await self._copied(holding)

    async def forget(self, tenant: str, conversation: str, snapshot: SnapshotRef | None) -> None:
        """Remove a workspace of a deleted conversation, with its copies.

        Raises:
            Unavailable: not everything is gone.
            OSError: files could not be deleted.
        """
        holding = self.holdings.of(tenant, conversation)
        copies = {holding.snapshot, holding.unfinished, snapshot and snapshot.id} - {None}
        if not await self.holdings.drop(holding):
            raise Unavailable("a call runs in the workspace")
        for copy in copies:
            if copy is not None:
                await self.snapshots.remove(tenant, conversation, copy)

    def _is_due(self, holding: Holding) -> bool:
        desk = holding.desk
        idle = asyncio.get_running_loop().time() - holding.last_used >= self.settings.idle_s
        known = holding.key in self._copying or self._refused.get(holding.key) == desk.edits
        return desk.changed and not desk.users and idle and not known

    def _may_go(self, holding: Holding) -> bool:
        if self.settings.evict_after_s is None or holding.desk.users:
            return False
        idle_s = asyncio.get_running_loop().time() - holding.last_used
        is_due = idle_s >= self.settings.evict_after_s
        return is_due and self.holdings.workspaces.exists(*holding.key)

    async def _evict(self, holding: Holding) -> None:
        try:
            if await self.holdings.evict(holding):
                logger.info("%s: its files are only in its copy now", holding.conversation)
        except OSError as error:
            logger.error("%s: not evicted: %s", holding.conversation, error)

    async def _copy_when_idle(self, holding: Holding) -> None:
        try:
            await self._copied(holding)
        finally:
            self._copying.discard(holding.key)

    async def _copied(self, holding: Holding) -> None:
        """Copy a workspace and report it; a failure is logged, and the workspace stays changed."""
        name = holding.conversation
        try:
            async with self._slots:
                await self._copy(holding)
        except CopyRefused as refused:
            self._refused[holding.key] = holding.desk.edits
            logger.warning("%s: no copy is made: %s", name, refused)
        except (BanksmanError, OSError) as error:
            # Looked at again after the next pause, like one that was just used.
            holding.last_used = asyncio.get_running_loop().time()
            logger.warning("%s: no copy was made: %s", name, error)

    async def _copy(self, holding: Holding) -> None:
        desk = holding.desk
        async with contextlib.AsyncExitStack() as archive:
            async with holding.lock:
                if desk.users or not desk.changed:
                    return
                await self._remove_unfinished(holding)
                edits, term, generation = desk.edits, desk.term, desk.generation
                directory = self.holdings.workspaces.get(*holding.key).directory
                archived = await archive.enter_async_context(self.snapshots.archived(directory))
                holding.unfinished = archived.id
                await self.holdings.remember(holding)
            stored = await self.snapshots.store(*holding.key, archived, term=term, generation=generation)
        async with holding.lock:
            replaced = holding.snapshot
            report = self._report(holding, snapshot=stored, complete=desk.edits == edits)
            verdict = await self._told(holding, report)
        await self._settle(holding, stored, verdict, replaced)

    def _report(self, holding: Holding, **said: object) -> WorkspaceReport:
        desk = holding.desk
        told = WorkspaceReport(
            runner_epoch=self.holdings.runner_epoch, term=desk.term, generation=desk.generation
        )
        return told.model_copy(update=said)

    async def _told(self, holding: Holding, report: WorkspaceReport) -> WorkspaceReportReply:
        """Report a copy. When nobody answers it may have been heard: then no change begins unreported."""
        try:
            return await self.holdings.ask(holding, report)
        except BanksmanError:
            holding.unsure = True
            holding.desk.changed = holding.desk.changed and not report.complete
            raise

    async def _settle(
        self, holding: Holding, stored: SnapshotRef, verdict: WorkspaceReportReply, replaced: str | None
    ) -> None:
        """Remove the copy that does not count."""
        counts = verdict.mine and verdict.snapshot is not None and verdict.snapshot.id == stored.id
        if not counts:
            self._refused[holding.key] = holding.desk.edits
        unneeded = replaced if counts else stored.id
        if unneeded is not None:
            await self.snapshots.remove(*holding.key, unneeded)
        if not verdict.mine:
            await self.holdings.drop(holding)

    async def _remove_unfinished(self, holding: Holding) -> None:
        """Remove what an earlier try left, unless it counts after all."""
        unfinished = holding.unfinished
        if unfinished is None:
            return
        await self.holdings.ask(holding, self._report(holding))
        if holding.snapshot != unfinished:
            await self.snapshots.remove(*holding.key, unfinished)
            holding.unfinished = None

    async def _reconcile(self, holding: Holding) -> None:
        """Learn what the record says after a report that nobody answered."""
        try:
            async with holding.lock:
                await self.holdings.ask(holding, self._report(holding))
        except (BanksmanError, OSError) as error:
            logger.warning("%s: whether its copy counts is not known yet: %s", holding.conversation, error)

    async def _ask_about_all(self) -> None:
        """Find out which workspaces went elsewhere, or ended, while this runner was away."""
        slots = asyncio.Semaphore(ASKS_AT_A_TIME)

        async def ask(holding: Holding) -> None:
            async with slots:
                await self._ask_about(holding)

        async with asyncio.TaskGroup() as tasks:
            for holding in self.holdings:
                tasks.create_task(ask(holding))

    async def _ask_about(self, holding: Holding) -> None:
        while True:
            async with holding.lock:
                report = self._report(holding)
                try:
                    verdict = await self.holdings.ask(holding, report)
                    break
                except (BanksmanError, OSError) as error:
                    logger.warning("%s: whose it is is not known yet: %s", holding.conversation, error)
            await asyncio.sleep(ASK_AGAIN_S)
        try:
            if not verdict.mine and holding.desk.term == report.term and await self.holdings.drop(holding):
                logger.info("%s: its files were of an earlier term and are removed", holding.conversation)
        except OSError as error:
            logger.error("%s: its old files are not removed: %s", holding.conversation, error)

    async def _tell_loss(self, holding: Holding) -> None:
        try:
            async with holding.lock:
                await self.holdings.ask(holding, self._report(holding, lost=holding.lost))
                holding.lost = None
                await self.holdings.remember(holding)
        except (BanksmanError, OSError) as error:
            logger.warning("%s: its loss is not told yet: %s", holding.conversation, error)

    async def _collect_for_ever(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.settings.collect_every_s)
            try:
                await self.collect(datetime.now(UTC) - GARBAGE_AFTER)
            except BanksmanError as error:
                logger.warning("interrupted copies were not looked for: %s", error)

    async def collect(self, before: datetime) -> None:
        """Remove copies of any runner that were begun before a moment and that the platform does not know.

        Raises:
            Unavailable: the store or the platform did not answer.
        """
        question = WorkspaceReport(runner_epoch=self.holdings.runner_epoch, term=0)
        for (tenant, conversation), copies in (await self.snapshots.stored_before(before)).items():
            verdict = await self.reports.ask(tenant, conversation, question)
            if verdict.known:
                kept = verdict.snapshot and verdict.snapshot.id
                for copy in copies - {kept}:
                    await self.snapshots.remove_leftovers(tenant, conversation, copy)
