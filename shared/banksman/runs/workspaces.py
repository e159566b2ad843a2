"""Who has a workspace, and when it may go to another runner: decided here, carried out by others.

A workspace is on one runner at a time, for a *term*. It is either unchanged since its last copy, and then any
runner may take it over at once, or it may have changed, and then it waits for its runner. What makes the
difference certain is its *generation*: a call that may change files is sent with the number at which the
record was marked changed. Before a runner says that a copy is complete it seals the generation: it admits no
more changes at this number. So a record that says "unchanged" can only become wrong by a call that first
marks it changed again, with a higher number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.contracts.calls import RunnerLease
from banksman.contracts.workspaces import (
    WorkspaceLoss,
    WorkspaceOwner,
    WorkspacePlace,
    WorkspaceReport,
    WorkspaceVerdict,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the record should say, and whether a request may be sent under it."""

    record: WorkspaceOwner
    serves: bool
    """False when the workspace must wait."""


def wanted(
    record: WorkspaceOwner | None,
    *,
    holder: RunnerLease | None,
    chosen: RunnerLease | None,
    changes: bool,
    starter: str | None = None,
    now: datetime,
    wait_s: float,
) -> Wanted | None:
    """Where the next request to a workspace goes.

    Args:
        record: What KV `owners` says; None for a new workspace.
        holder: The lease of the record's runner; None when it has none.
        chosen: The runner that would get the workspace if it were free; None when nobody takes any.
        changes: Whether the request may change files.
        starter: What a new workspace begins with.
        now: The moment.
        wait_s: Seconds that a changed workspace waits for its runner.

    Returns:
        None when there is nobody to send to and nothing to write.
    """
    if record is None:
        return chosen and _served(_new(chosen, starter), chosen, changes)
    if record.deleted:
        return None
    if holder is not None and holder.serving:
        return _served(record, holder, changes)
    if not record.dirty:
        return chosen and _served(_moved(record, chosen), chosen, changes)
    if holder is not None:
        # It ends, or its sandbox does not hold: either way it stores a copy soon.
        return None
    if record.gone_since is None:
        return Wanted(record.model_copy(update={"gone_since": now}), serves=False)
    if chosen is None or now < record.gone_since + timedelta(seconds=wait_s):
        return None
    return _served(_moved(record, chosen), chosen, changes)


def reported(
    record: WorkspaceOwner | None, runner: str, report: WorkspaceReport
) -> tuple[WorkspaceOwner | None, WorkspaceVerdict]:
    """What a runner's report changes, and the answer to it.

    Returns:
        The record to write, or None when it stays as it is; and the verdict.
    """
    if record is None:
        return None, WorkspaceVerdict(mine=True, known=False)
    mine = not record.deleted and (record.runner, record.term) == (runner, report.term)
    if not mine or report.runner_epoch < record.runner_epoch:
        return None, _verdict(record, mine=mine)
    told = record.model_copy(update=_told(record, report))
    return (told if told != record else None), _verdict(told, mine=True)


def _told(record: WorkspaceOwner, report: WorkspaceReport) -> dict[str, object]:
    """What a report of the runner that has the workspace changes."""
    changes: dict[str, object] = {"gone_since": None}
    if report.snapshot is not None and report.generation <= record.generation:
        complete = report.complete and report.generation == record.generation
        changes |= {"snapshot": report.snapshot, "dirty": record.dirty and not complete}
    if report.lost is not None:
        changes["loss"] = WorkspaceLoss(term=record.term, snapshot_ts=None, reason=report.lost)
    return changes


def place_of(record: WorkspaceOwner) -> WorkspacePlace:
    """What the runner is told of the workspace."""
    return WorkspacePlace(
        term=record.term,
        generation=record.generation,
        snapshot=record.snapshot,
        starter=record.starter,
    )


def _new(chosen: RunnerLease, starter: str | None) -> WorkspaceOwner:
    return WorkspaceOwner(
        runner=chosen.runner, runner_epoch=chosen.runner_epoch, generation=0, starter=starter
    )


def _served(record: WorkspaceOwner, by: RunnerLease, changes: bool) -> Wanted:
    marked: dict[str, object] = {"runner_epoch": by.runner_epoch, "gone_since": None}
    if changes and not record.dirty:
        marked |= {"dirty": True, "generation": record.generation + 1}
    return Wanted(record.model_copy(update=marked), serves=True)


def _moved(record: WorkspaceOwner, chosen: RunnerLease) -> WorkspaceOwner:
    term = record.term + 1
    loss = record.loss
    if record.dirty:
        loss = WorkspaceLoss(term=term, snapshot_ts=record.snapshot and record.snapshot.created_at)
    moved = {"runner": chosen.runner, "term": term, "dirty": False, "loss": loss}
    return record.model_copy(update=moved)


def _verdict(record: WorkspaceOwner, *, mine: bool) -> WorkspaceVerdict:
    snapshot = None if record.deleted else record.snapshot
    return WorkspaceVerdict(mine=mine, dirty=record.dirty, snapshot=snapshot)


@dataclass
class WorkspaceDesk:
    """What a runner process knows of one workspace that it has, or is about to get."""

    term: int = 0
    """Of the directory; 0 when there is none."""
    generation: int = 0
    """The highest at which a change was begun."""
    sealed: int = 0
    """The highest at which no change is begun any more."""
    users: int = 0
    """Requests that were admitted and have not ended."""
    edits: int = 0
    """Changes that this process has begun: two copies with the same number between them are equal."""

    @property
    def changed(self) -> bool:
        """Whether the files may differ from the last complete copy."""
        return self.generation > self.sealed

    def admits(self, place: WorkspacePlace, *, changes: bool) -> bool:
        """Whether a request may be let in: not from before a move or, if it changes files, before a seal."""
        if place.term != self.term:
            return place.term > self.term
        return not changes or place.generation > self.sealed

    def begins(self, place: WorkspacePlace, *, changes: bool) -> None:
        """Note a request whose turn has come, after the files of its term are there."""
        if place.term > self.term:
            self.term, self.generation, self.sealed = place.term, 0, 0
        if changes:
            self.generation = max(self.generation, place.generation)
            self.edits += 1

    def seal(self, edits: int) -> bool:
        """Admit no more changes at this generation; False when one was let in since a copy was begun.

        `edits` is their number when the files were read for the copy.
        """
        if self.users or self.edits != edits:
            return False
        self.sealed = self.generation
        return True
