"""The workspaces that this runner has: of which term, and whether they changed since their last copy."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
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
from banksman.runs.workspaces import WorkspaceDesk
from banksman.runtime.failpoints import reach
from banksman.tool_runner.workspaces.archive_writing import CopyRefused
from banksman.tool_runner.workspaces.files import PathRefused, write_whole
from banksman.tool_runner.workspaces.reports import Reports
from banksman.tool_runner.workspaces.snapshots import Snapshots
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

logger = logging.getLogger(__name__)


class _Record(BaseModel):
    """What is remembered of a workspace beside its files, in the runner's volume."""

    model_config = ConfigDict(frozen=True)

    term: int = 0
    """0 while the files of a term are being put there."""
    generation: int = 0
    snapshot: str | None = None
    """The last copy of this workspace, of which the platform knows."""
    unfinished: str | None = None
    """A copy of which the platform does not know yet."""
    lost: str | None = None
    """Why the copy could not be restored; None when it was, or this has been told."""


class Moved(Unavailable):
    """The workspace has moved on since a request was placed: whoever sent it must place it anew."""

    def __init__(self) -> None:
        super().__init__("the workspace has moved since it was placed")


class CopyLost(Exception):
    """The copy of a workspace cannot be restored, so it is empty now; the message is for the model."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The workspace moved here, and the copy of its files could not be restored: {reason}. "
            "It is empty now."
        )


@dataclass
class Holding:
    """One workspace."""

    tenant: str
    conversation: str
    desk: WorkspaceDesk = field(default_factory=WorkspaceDesk)
    snapshot: str | None = None
    unfinished: str | None = None
    lost: str | None = None
    unsure: bool = False
    """Whether the record must be asked what it says: after a start, and after a report without an answer.
    Until then the files count as unchanged, so that the next change is reported first."""
    last_used: float = 0.0
    """A moment of the loop's clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the files are put there, copied or removed, and while their state is reported: no request
    begins meanwhile."""

    @property
    def key(self) -> tuple[str, str]:
        """Tenant and conversation."""
        return self.tenant, self.conversation


class WorkspaceRegistry:
    """All of them, by tenant and conversation."""

    def __init__(
        self, workspaces: WorkspaceStore, snapshots: Snapshots, reports: Reports, *, runner_epoch: int
    ) -> None:
        self.workspaces = workspaces
        self.runner_epoch = runner_epoch
        self._snapshots = snapshots
        self._reports = reports
        self._records = workspaces.root / ".records"
        self._held: dict[tuple[str, str], Holding] = {}

    def load(self) -> None:
        """Read what earlier processes of this runner have left.

        Whether a workspace has changed is not among it: the record may say something else since.

        Raises:
            OSError: the directory cannot be made or read.
        """
        self._records.mkdir(mode=0o700, exist_ok=True)
        for path in self._records.glob("*.json"):
            tenant, _, conversation = path.stem.partition(".")
            record = _read(path)
            desk = WorkspaceDesk(record.term, record.generation)
            self._held[tenant, conversation] = Holding(
                tenant, conversation, desk, record.snapshot, record.unfinished, record.lost, unsure=True
            )
        for tenant, conversation in self.workspaces.stored():
            # Kept by a version that wrote no records: it knew of no moves, and of no copies.
            if (tenant, conversation) not in self._held:
                desk = WorkspaceDesk(term=1)
                self._held[tenant, conversation] = Holding(tenant, conversation, desk, unsure=True)

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._held.values()))

    def of(self, tenant: str, conversation: str) -> Holding:
        """What is known of a workspace, which may be nothing yet.

        Raises:
            BadInput: an id has a character that ids do not have.
        """
        key = (check_token(tenant, "tenant"), check_token(conversation, "conversation_id"))
        return self._held.setdefault(key, Holding(*key))

    def admits(self, tenant: str, conversation: str, place: WorkspacePlacement) -> bool:
        """Whether a request may be let in; if not, whoever sent it must place the workspace anew."""
        holding = self.of(tenant, conversation)
        return holding.desk.admits(place) and not self._names_an_older_copy(holding, place)

    def _names_an_older_copy(self, holding: Holding, place: WorkspacePlacement) -> bool:
        """Whether files that are in their copy only would be restored from one that is replaced by now."""
        if place.term != holding.desk.term or holding.snapshot == (place.snapshot and place.snapshot.id):
            return False
        return not self.workspaces.exists(*holding.key)

    def is_empty(self, tenant: str, conversation: str, place: WorkspacePlacement) -> bool:
        """Whether a workspace was never used, so that looking into it needs no files."""
        desk = self.of(tenant, conversation).desk
        return place.snapshot is None and (
            desk.term < place.term or not self.workspaces.exists(tenant, conversation)
        )

    def enter(self, tenant: str, conversation: str) -> Holding:
        """Keep a workspace as it is for a request that was admitted just now, until `leave`."""
        holding = self.of(tenant, conversation)
        holding.desk.users += 1
        return holding

    def leave(self, holding: Holding) -> None:
        """The request has ended."""
        holding.desk.users -= 1
        holding.last_used = asyncio.get_running_loop().time()

    async def ready(self, holding: Holding, place: WorkspacePlacement, *, changes: bool) -> None:
        """Wait until the files of the request's term are there, and may change if the request changes them.

        Raises:
            CopyLost: they cannot be restored; the next request finds an empty workspace.
            Moved: the workspace is of another term by now.
            Unavailable: not now: nobody answers.
            OSError: the files cannot be written.
        """
        async with holding.lock:
            if not holding.desk.admits(place):
                raise Moved
            exists = self.workspaces.exists(*holding.key)
            if place.term > holding.desk.term or not exists:
                await self._take(holding, place)
            if changes:
                await self._begin(holding)

    async def ask(self, holding: Holding, report: WorkspaceReport) -> WorkspaceReportReply:
        """Report while the lock is held, and go by the answer.

        Raises:
            Unavailable: nobody answered; whether the report was heard is not known.
        """
        verdict = await self._reports.ask(*holding.key, report)
        if verdict.mine and verdict.known:
            holding.desk.hears(verdict)
            holding.snapshot = verdict.snapshot and verdict.snapshot.id
            if holding.unfinished == holding.snapshot:
                holding.unfinished = None
            holding.unsure = False
            await self.remember(holding)
        return verdict

    async def _begin(self, holding: Holding) -> None:
        """Let the files change, which the record says first."""
        desk = holding.desk
        if (report := desk.begins(self.runner_epoch)) is not None:
            verdict = await self.ask(holding, report)
            if not verdict.known:
                desk.changed = True
            if not verdict.mine:
                desk.past = desk.term
                raise Moved
            if not desk.changed:
                raise Unavailable("the workspace is at a later change by now")
        desk.edits += 1

    async def remember(self, holding: Holding) -> None:
        """Write down what is known of a workspace."""
        await asyncio.to_thread(self._write, holding, _record_of(holding))

    async def drop(self, holding: Holding) -> bool:
        """Remove the files and the record of a workspace that is not ours; False while it is in use."""
        if holding.desk.users:
            return False
        async with holding.lock:
            if holding.desk.users:
                return False
            await self.workspaces.delete(*holding.key)
            await asyncio.to_thread(self._path(holding).unlink, missing_ok=True)
            if self._held.get(holding.key) is holding:
                del self._held[holding.key]
        return True

    async def evict(self, holding: Holding) -> bool:
        """Remove the files of a workspace, which are in its copy as well; False when it is in use."""
        desk = holding.desk
        if desk.users or desk.changed or holding.snapshot is None or holding.lock.locked():
            return False
        async with holding.lock:
            await self.workspaces.delete(*holding.key)
        return True

    async def _take(self, holding: Holding, place: WorkspacePlacement) -> None:
        """Put the files of a term in the place of whatever is there.

        A process that dies meanwhile leaves a record that says so: then all of it is done again.
        """
        first = await self._asked_before_taking(holding, place)
        await self._mark_unfinished(holding)
        await self.workspaces.delete(*holding.key)
        lost = None
        if place.snapshot is not None:
            lost = await self._restored(holding, place.snapshot)
        if place.snapshot is None or lost is not None:
            await asyncio.to_thread(self._make, holding, first)
            await reach("runner.workspace_made")
        holding.desk.takes(place)
        holding.snapshot = place.snapshot.id if place.snapshot and lost is None else None
        holding.lost = lost
        await self.remember(holding)
        if lost is not None:
            raise CopyLost(lost)

    async def _asked_before_taking(
        self, holding: Holding, place: WorkspacePlacement
    ) -> tuple[AssistantFile, ...]:
        """The files that a workspace starts with: none but one that never changed anywhere has some.

        Files of the same term may have been here, on a volume that is gone. Then the record begins another
        term, with the loss.
        """
        starts = place.generation == 0 and place.snapshot is None
        report = WorkspaceReport(runner_epoch=self.runner_epoch, term=place.term, starts=starts, missing=True)
        verdict = await self._reports.ask(*holding.key, report)
        if not verdict.mine:
            holding.desk.past = place.term
            raise Moved
        return verdict.files

    def _make(self, holding: Holding, first: tuple[AssistantFile, ...]) -> None:
        """Make the directory, with the files that it starts with. They count as no change."""
        workspace = self.workspaces.get(*holding.key)
        for file in first:
            try:
                write_whole(
                    workspace.directory, file.path, file.data, workspace.identity, executable=file.executable
                )
            except PathRefused as refused:
                raise Unavailable(f"a file of the assistant cannot be written: {refused}") from refused

    async def _mark_unfinished(self, holding: Holding) -> None:
        """From now until its end, a process that starts anew takes what is there for nothing."""
        record = _record_of(holding).model_copy(update={"term": 0})
        await asyncio.to_thread(self._write, holding, record)

    async def _restored(self, holding: Holding, snapshot: SnapshotRef) -> str | None:
        """Restore a copy; why it could not be, or None."""
        target = self.workspaces.place_for(*holding.key)
        try:
            await self._snapshots.restore(*holding.key, snapshot, target)
        except CopyRefused as refused:
            logger.error("%s: the copy %s is not restored: %s", holding.conversation, snapshot.id, refused)
            return str(refused)
        logger.info("%s: restored from the copy %s", holding.conversation, snapshot.id)
        return None

    def _path(self, holding: Holding) -> Path:
        return self._records / f"{holding.tenant}.{holding.conversation}.json"

    def _write(self, holding: Holding, record: _Record) -> None:
        path = self._path(holding)
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(record.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _record_of(holding: Holding) -> _Record:
    desk = holding.desk
    return _Record(
        term=desk.term,
        generation=desk.generation,
        snapshot=holding.snapshot,
        unfinished=holding.unfinished,
        lost=holding.lost,
    )


def _read(path: Path) -> _Record:
    """A record; one that cannot be read says nothing, and the files beside it count as nothing."""
    try:
        return _Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        logger.error("%s: not read: %s", path.name, error)
        return _Record()
