"""Who has a workspace, and when it may go to another runner: decided here, carried out by others.

A workspace is on one runner at a time, for a *term*. It is either unchanged since its last copy, and then any
runner may take it over at once, or it may have changed, and then it waits for its runner. What makes the
difference certain is that a runner has the record say "changed" before it lets the first change begin: the
record is written by compare-and-set, so either the runner was first and the workspace waits, or the move was
first and the runner learns that the workspace is not its own any more. Each time the workspace begins to
change its *generation* rises, so that a report which arrives late can be told from a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.contracts.assistants import Assistant
from banksman.contracts.calls import RunnerLease
from banksman.contracts.workspaces import (
    SnapshotRef,
    WorkspaceLoss,
    WorkspaceOwner,
    WorkspacePlacement,
    WorkspaceReport,
    WorkspaceReportReply,
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
    now: datetime,
    wait_s: float,
) -> Wanted | None:
    """Where the next request to a workspace goes.

    Args:
        record: What KV `owners` says; None for a new workspace.
        holder: The lease of the record's runner; None when it has none.
        chosen: The runner that would get the workspace if it were free; None when nobody takes any.
        now: The moment.
        wait_s: Seconds that a changed workspace waits for its runner.

    Returns:
        None when there is nobody to send to and nothing to write.
    """
    if record is None:
        return chosen and _served(_new(chosen), chosen)
    if record.deleted:
        return None
    if holder is not None and holder.serving:
        return _served(record, holder)
    if not record.dirty:
        return chosen and _served(_moved(record, chosen.runner), chosen)
    if holder is not None:
        # It ends, or its sandbox does not hold: either way it stores a copy soon.
        return None
    if record.gone_since is None:
        return Wanted(record.model_copy(update={"gone_since": now}), serves=False)
    if chosen is None or now < record.gone_since + timedelta(seconds=wait_s):
        return None
    return _served(_moved(record, chosen.runner), chosen)


def reported(
    record: WorkspaceOwner | None, runner: str, report: WorkspaceReport, assistant: Assistant | None = None
) -> tuple[WorkspaceOwner | None, WorkspaceReportReply]:
    """What a runner's report changes, and the answer to it.

    Args:
        record: What KV `owners` says.
        runner: Who reports.
        report: What it says.
        assistant: That of the conversation, for a workspace that starts.

    Returns:
        The record to write, or None when it stays as it is; and the verdict.
    """
    if record is None:
        return None, WorkspaceReportReply(mine=True, known=False)
    mine = not record.deleted and (record.runner, record.term) == (runner, report.term)
    if not mine or report.runner_epoch < record.runner_epoch:
        return None, _verdict(record, mine=mine)
    if report.missing and record.dirty:
        return _moved(record, runner), _verdict(record, mine=False)
    told = record.model_copy(update=_told(record, report) | _started_with(assistant))
    verdict = _verdict(told, mine=True)
    if assistant is not None:
        verdict = verdict.model_copy(update={"files": assistant.files})
    return (told if told != record else None), verdict


def _told(record: WorkspaceOwner, report: WorkspaceReport) -> dict[str, object]:
    """What a report of the runner that has the workspace changes."""
    changes: dict[str, object] = {"gone_since": None}
    if report.begins and report.generation > record.generation:
        changes |= {"dirty": True, "generation": report.generation}
    if report.snapshot is not None and _is_newer(report.snapshot, record.snapshot):
        changes["snapshot"] = report.snapshot
        if report.complete and report.generation == record.generation:
            changes["dirty"] = False
    if report.lost is not None:
        changes["loss"] = WorkspaceLoss(term=record.term, snapshot_ts=None, reason=report.lost)
    return changes


def _started_with(assistant: Assistant | None) -> dict[str, object]:
    """What the record says of the files that a workspace starts with."""
    if assistant is None or not assistant.files:
        return {}
    return {"assistant": assistant.id, "assistant_revision": assistant.revision}


def _is_newer(snapshot: SnapshotRef, known: SnapshotRef | None) -> bool:
    """Whether a copy is the known one or was made after it."""
    return known is None or snapshot.created_at >= known.created_at


def place_of(record: WorkspaceOwner) -> WorkspacePlacement:
    """What the runner is told of the workspace."""
    return WorkspacePlacement(
        term=record.term,
        generation=record.generation,
        snapshot=record.snapshot,
    )


def _new(chosen: RunnerLease) -> WorkspaceOwner:
    return WorkspaceOwner(runner=chosen.runner, runner_epoch=chosen.runner_epoch)


def _served(record: WorkspaceOwner, by: RunnerLease) -> Wanted:
    served = {"runner_epoch": by.runner_epoch, "gone_since": None}
    return Wanted(record.model_copy(update=served), serves=True)


def _moved(record: WorkspaceOwner, to: str) -> WorkspaceOwner:
    """The record of a workspace that begins a term with its last copy, at another runner or the same."""
    term = record.term + 1
    loss = record.loss
    if record.dirty:
        loss = WorkspaceLoss(term=term, snapshot_ts=record.snapshot and record.snapshot.created_at)
    moved = {"runner": to, "term": term, "dirty": False, "loss": loss}
    return record.model_copy(update=moved)


def _verdict(record: WorkspaceOwner, *, mine: bool) -> WorkspaceReportReply:
    snapshot = None if record.deleted else record.snapshot
    return WorkspaceReportReply(
        mine=mine, generation=record.generation, dirty=record.dirty, snapshot=snapshot
    )


@dataclass
class WorkspaceDesk:
    """What a runner process knows of one workspace that it has, or is about to get."""

    term: int = 0
    """Of the directory; 0 when there is none."""
    generation: int = 0
    changed: bool = False
    """Whether the record says that the files may differ from the last copy, for certain: while it is False
    nothing may change them. So a process begins with False, whatever one before it knew."""
    users: int = 0
    """Requests that were admitted and have not ended."""
    edits: int = 0
    """Requests that may change files, begun by this process: between two equal counts nothing changed."""
    past: int = 0
    """The newest term that is known to be over here."""

    def admits(self, place: WorkspacePlacement) -> bool:
        """Whether a request may be let in: not when it is from before a move."""
        return place.term >= self.term and place.term > self.past

    def takes(self, place: WorkspacePlacement) -> None:
        """Note that the files of a term are there, as they are in the copy."""
        self.term, self.generation, self.changed = place.term, place.generation, False

    def begins(self, runner_epoch: int) -> WorkspaceReport | None:
        """What must be reported before the files may change; None when they may."""
        if self.changed:
            return None
        return WorkspaceReport(
            runner_epoch=runner_epoch, term=self.term, generation=self.generation + 1, begins=True
        )

    def hears(self, verdict: WorkspaceReportReply) -> None:
        """Go by what the record says of a workspace that is this runner's."""
        self.generation = max(self.generation, verdict.generation)
        self.changed = verdict.dirty
