"""The workspaces of this runner: the turns of calls in them, their terms, their files and their changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import check_token
from banksman.contracts.processes import KnownProcess
from banksman.contracts.workspace_tools import BASH, PROCESS_TOOLS, SEARCH_CODE, WEB_FETCH, WEB_SEARCH
from banksman.contracts.workspaces import (
    AssistantFile,
    SnapshotRef,
    WorkspacePlacement,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.quotas.places import SharedPlaces, Shares
from banksman.runtime.failpoints import reach
from banksman.tool_runner.repositories import Repositories
from banksman.tool_runner.workspaces.archive import SnapshotRefused
from banksman.tool_runner.workspaces.entry import (
    Reports,
    SnapshotLost,
    SourceFailed,
    WorkspaceEntry,
    WorkspaceMoved,
    WorkspaceRecords,
)
from banksman.tool_runner.workspaces.files import PathRefused, write_whole
from banksman.tool_runner.workspaces.snapshots import Snapshots
from banksman.tool_runner.workspaces.workspace import Workspace, WorkspaceStore

logger = logging.getLogger(__name__)

_COMMANDS = (BASH.name, SEARCH_CODE.name)
"""Tools that run a program in the sandbox."""


def takes_workspace(tool: str) -> bool:
    """Return whether calls of a tool are serialised per workspace.

    `web_fetch` is not: it writes no file before the response has arrived. `web_search` writes none.
    """
    return tool not in (WEB_FETCH.name, WEB_SEARCH.name) and tool not in PROCESS_TOOLS


class CallTurns:
    """The turns of calls: one call per workspace at a time, and a bounded number of commands and fetches.

    Tenants share the commands and the fetches, so that long calls of one tenant do not delay those of
    another. Waiting calls of a tenant get their turns in order of arrival. A call waits for its turn before
    its start is recorded, because owners count its time-out from the start.
    """

    def __init__(self, *, commands: Shares, fetches: Shares) -> None:
        self._commands = SharedPlaces(commands)
        self._fetches = SharedPlaces(fetches)
        self._workspaces: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """A lock exists while a call holds it or waits for it."""

    @asynccontextmanager
    async def turn(self, tool: str, tenant: str, conversation: str) -> AsyncGenerator[AsyncExitStack]:
        """Hold the turn of a call for the block; closing the yielded stack ends the turn early."""
        async with AsyncExitStack() as held:
            if takes_workspace(tool):
                await held.enter_async_context(self.workspace(tenant, conversation))
            elif tool not in PROCESS_TOOLS:
                await held.enter_async_context(self._fetches.place(tenant))
            if tool in _COMMANDS:
                await held.enter_async_context(self._commands.place(tenant))
            yield held

    def workspace(self, tenant: str, conversation: str) -> asyncio.Lock:
        return self._workspaces.setdefault((tenant, conversation), asyncio.Lock())


@dataclass
class WorkspaceRegistry:
    workspaces: WorkspaceStore
    snapshots: Snapshots
    reports: Reports
    turns: CallTurns
    runner_epoch: int
    runs_processes: Callable[[tuple[str, str]], bool] = lambda _: False
    """Whether processes that outlive their call run in a workspace, and may change it at any time."""
    before_removal: Callable[[str, str], Awaitable[None]] | None = None
    """Ends what still runs in the workspace of a tenant's conversation, before its files are removed."""
    repositories: Repositories | None = None
    _entries: dict[tuple[str, str], WorkspaceEntry] = field(
        default_factory=dict[tuple[str, str], WorkspaceEntry]
    )

    def __post_init__(self) -> None:
        self._records = WorkspaceRecords(self.workspaces.root / ".records")

    def load(self) -> None:
        self._entries |= {entry.key: entry for entry in self._records.load()}

    def __iter__(self) -> Iterator[WorkspaceEntry]:
        return iter(tuple(self._entries.values()))

    def get(self, tenant: str, conversation: str) -> WorkspaceEntry:
        key = (check_token(tenant, "tenant"), check_token(conversation, "conversation_id"))
        return self._entries.setdefault(key, WorkspaceEntry(*key))

    def admits(self, tenant: str, conversation: str, place: WorkspacePlacement) -> bool:
        """Return whether a request may run here; if not, its sender places the workspace again."""
        entry = self.get(tenant, conversation)
        return entry.state.admits(place) and not self._names_an_older_snapshot(entry, place)

    def _names_an_older_snapshot(self, entry: WorkspaceEntry, place: WorkspacePlacement) -> bool:
        """An evicted workspace must not be restored from a snapshot that is already replaced."""
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
        entry.state.users -= 1
        entry.last_used = asyncio.get_running_loop().time()

    async def prepare(
        self,
        entry: WorkspaceEntry,
        place: WorkspacePlacement,
        *,
        changes: bool,
        has_turn: bool,
        repeats: bool = False,
    ) -> None:
        """Bring the files of the request's term to this runner, and report the first change of a workspace.

        Args:
            entry: The workspace, after `enter`.
            place: Where the request was placed.
            changes: Whether the request may change files.
            has_turn: Whether the caller holds the workspace's turn.
            repeats: See `Reports.send`. The sender of a file request does not wait for repeated reports.

        Raises:
            SnapshotLost: the files cannot be restored; the next request finds an empty workspace.
            WorkspaceMoved: the workspace now has another term.
        """
        async with AsyncExitStack() as locks:
            await locks.enter_async_context(entry.lock)
            if not has_turn and self._replaces_files(entry, place):
                # A call of an earlier term may still run in the files that are replaced. The turn is taken
                # before the lock: in the other order, this request and a call that holds the turn would wait
                # for each other.
                await locks.aclose()
                await locks.enter_async_context(self.turns.workspace(*entry.key))
                await locks.enter_async_context(entry.lock)
            if not entry.state.admits(place):
                raise WorkspaceMoved
            if place.term > entry.state.term or not self.workspaces.exists(*entry.key):
                await self._install(entry, place, repeats=repeats)
            if changes:
                await self._begin_change(entry, repeats=repeats)

    def _replaces_files(self, entry: WorkspaceEntry, place: WorkspacePlacement) -> bool:
        newer = entry.state.admits(place) and place.term > entry.state.term
        return newer and self.workspaces.exists(*entry.key)

    async def report(
        self, entry: WorkspaceEntry, report: WorkspaceReport, *, repeats: bool = False
    ) -> WorkspaceReportReply:
        """Send a report and adopt the state of the platform's record. The caller holds `entry.lock`.

        If no reply arrives, which raises Unavailable, the platform may have received the report.
        """
        verdict = await self.reports.send(*entry.key, report, repeats=repeats)
        if verdict.mine and verdict.known:
            entry.state.apply(verdict)
            entry.snapshot = verdict.snapshot and verdict.snapshot.id
            if entry.unfinished == entry.snapshot:
                entry.unfinished = None
            entry.unconfirmed = False
            await self.store(entry)
        return verdict

    async def _begin_change(self, entry: WorkspaceEntry, *, repeats: bool) -> None:
        """Allow the files to change. The platform's record must state the change before it happens.

        Otherwise another runner could take over the workspace from a snapshot that misses the change.
        """
        state = entry.state
        if (report := state.report_of_change(self.runner_epoch)) is not None:
            verdict = await self.report(entry, report, repeats=repeats)
            if not verdict.known:
                state.changed = True
            if not verdict.mine:
                state.past = state.term
                raise WorkspaceMoved
            if not state.changed:
                raise Unavailable("the platform has recorded a later change of the workspace")
        state.edits += 1

    async def record_processes(self, key: tuple[str, str], running: tuple[KnownProcess, ...]) -> None:
        """Store the processes of a workspace that the model takes for running; raise `Unavailable`."""
        entry = self.get(*key)
        async with entry.lock:
            state = entry.state
            report = WorkspaceReport(
                runner_epoch=self.runner_epoch,
                term=state.term,
                generation=state.generation,
                processes=running,
            )
            await self.report(entry, report, repeats=True)

    def idle_s(self, key: tuple[str, str]) -> float:
        """Return the seconds since the last request of a workspace; 0 while one is served."""
        entry = self.get(*key)
        return 0.0 if entry.state.users else asyncio.get_running_loop().time() - entry.last_used

    async def store(self, entry: WorkspaceEntry) -> None:
        await self._records.store(entry)

    async def drop(self, entry: WorkspaceEntry) -> bool:
        """Delete files and record of a workspace that another runner has; return False while it is in use."""
        if entry.state.users:
            return False
        async with entry.lock:
            # A request may have entered while this call waited for the lock.
            if entry.state.users:
                return False
            await self._delete_files(entry)
            await self._records.delete(entry)
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
        return True

    async def evict(self, entry: WorkspaceEntry) -> bool:
        """Delete files that a snapshot contains; return False if the workspace is in use or changed."""
        state = entry.state
        if state.users or state.changed or entry.snapshot is None or entry.lock.locked():
            return False
        async with entry.lock:
            await self._delete_files(entry)
        return True

    async def _delete_files(self, entry: WorkspaceEntry) -> None:
        if self.before_removal is not None:
            await self.before_removal(*entry.key)
        await self.workspaces.delete(*entry.key)

    async def _install(self, entry: WorkspaceEntry, place: WorkspacePlacement, *, repeats: bool) -> None:
        """Replace the directory by the files of the term of `place`. The caller holds the lock of the entry.

        The stored record marks the directory as incomplete meanwhile. After a crash, the next process
        installs the files again. For `repeats`, see `Reports.send`.

        Raises:
            SnapshotLost: the snapshot cannot be restored; the directory is empty.
            SourceFailed: the repository cannot be fetched; the next request tries it again.
            WorkspaceMoved: the workspace now has another term.
        """
        arrival = await self._report_arrival(entry, place, repeats=repeats)
        await self._records.mark_incomplete(entry)
        await self._delete_files(entry)
        lost = None
        if place.snapshot is not None:
            lost = await self._restore(entry, place.snapshot)
        if place.snapshot is None or lost is not None:
            if arrival.repository is not None:
                if self.repositories is None:
                    raise SourceFailed(arrival.repository.source.repository, "this runner has no sandbox")
                await self.repositories.load(self.workspaces.get(*entry.key), arrival.repository)
            await asyncio.to_thread(self._create, entry, arrival.files)
            if arrival.files or arrival.repository:
                await self._keep_first(self.workspaces.get(*entry.key))
            await reach("runner.workspace_made")
        entry.state.restored(place)
        entry.snapshot = place.snapshot.id if place.snapshot and lost is None else None
        entry.lost = lost
        await self.store(entry)
        if lost is not None:
            raise SnapshotLost(lost)

    async def _report_arrival(
        self, entry: WorkspaceEntry, place: WorkspacePlacement, *, repeats: bool
    ) -> WorkspaceReportReply:
        """Report that this runner has no files of the term. The reply has the files of a new workspace.

        Only a workspace that has never changed starts with files. If files of the same term were lost with
        their volume, the platform's record starts another term and states the loss.
        """
        starts = place.generation == 0 and place.snapshot is None
        generation = place.generation
        while True:
            report = WorkspaceReport(
                runner_epoch=self.runner_epoch,
                term=place.term,
                starts=starts,
                missing=True,
                missing_at=generation,
            )
            verdict = await self.reports.send(*entry.key, report, repeats=repeats)
            if not verdict.mine:
                entry.state.past = place.term
                raise WorkspaceMoved
            if not verdict.dirty or verdict.generation <= generation:
                return verdict
            # The request was placed before the last change. Nothing changes now: the caller has the lock.
            generation = verdict.generation

    def _create(self, entry: WorkspaceEntry, first_files: tuple[AssistantFile, ...]) -> None:
        workspace = self.workspaces.get(*entry.key)
        for file in first_files:
            try:
                write_whole(
                    workspace.directory, file.path, file.data, workspace.identity, executable=file.executable
                )
            except PathRefused as refused:
                raise Unavailable(f"a file of the assistant cannot be written: {refused}") from refused

    async def unpack(self, entry: WorkspaceEntry, path: str) -> None:
        """Let a prepared workspace start from an archive that was uploaded into it.

        Raises:
            PathRefused: the archive cannot be unpacked, or is not the only file.
        """
        if self.repositories is None:
            raise Unavailable("this runner has no sandbox")
        async with self.turns.turn(BASH.name, *entry.key):
            workspace = self.workspaces.get(*entry.key)
            await self.repositories.unpack(workspace, path)
            await self._keep_first(workspace)

    async def _keep_first(self, workspace: Workspace) -> None:
        """Let the files with which a workspace starts be those that all changes are compared with."""
        index = await workspace.meter.indexed()
        workspace.indexes.keep(workspace.directory, index)
        workspace.baseline.delete()
        await asyncio.to_thread(workspace.baseline.begin, tuple(index), workspace.content)

    async def _restore(self, entry: WorkspaceEntry, snapshot: SnapshotRef) -> str | None:
        """Return the reason if the snapshot is refused, else None."""
        target = self.workspaces.path_of(*entry.key)
        try:
            await self.snapshots.restore(*entry.key, snapshot, target)
        except SnapshotRefused as refused:
            logger.error("%s: snapshot %s was not restored: %s", entry.conversation, snapshot.id, refused)
            return str(refused)
        logger.info("%s: restored from snapshot %s", entry.conversation, snapshot.id)
        return None
