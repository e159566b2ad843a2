"""Decisions about the runner of a workspace, and when the workspace may move. Pure.

A workspace is at one runner at a time, for a *term*. While it is unchanged since its last snapshot, any
runner may take it over at once. A workspace that may have changed waits for its runner.

A runner reports "changed" before it lets the first change begin. The record is written by compare-and-set, so
one of two things happens: the report is first, and the workspace waits; or the move is first, and the runner
learns that it no longer has the workspace. The *generation* rises each time a workspace begins to change, so
that a late report is recognised.
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
class PlacementDecision:
    """The record to store, and whether a request may be sent to its runner."""

    record: WorkspaceOwner
    serves: bool
    """False when the workspace must wait."""


def decide_placement(
    record: WorkspaceOwner | None,
    *,
    holder: RunnerLease | None,
    chosen: RunnerLease | None,
    now: datetime,
    wait_s: float,
) -> PlacementDecision | None:
    """Return the placement for the next request to a workspace.

    Args:
        record: The record in KV `owners`; None for a new workspace.
        holder: The lease of the record's runner; None when it has none.
        chosen: The runner that gets the workspace if it may move; None when no runner accepts workspaces.
        now: The current time.
        wait_s: Seconds that a changed workspace waits for its runner.

    Returns:
        None when no request can be sent and nothing is to be stored.
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
        # The runner is draining, or its sandbox failed its self-test: either way it stores a snapshot soon.
        return None
    if record.gone_since is None:
        return PlacementDecision(record.model_copy(update={"gone_since": now}), serves=False)
    if chosen is None or now < record.gone_since + timedelta(seconds=wait_s):
        return None
    return _served(_moved(record, chosen.runner), chosen)


def apply_report(
    record: WorkspaceOwner | None, runner: str, report: WorkspaceReport, assistant: Assistant | None = None
) -> tuple[WorkspaceOwner | None, WorkspaceReportReply]:
    """Return the changed record after a runner's report, and the reply to it.

    Args:
        record: The record in KV `owners`; None when there is none.
        runner: The runner that reports.
        report: The report.
        assistant: The assistant of the conversation, for a workspace that starts.

    Returns:
        The record to store, or None when it does not change; and the reply.
    """
    if record is None:
        return None, WorkspaceReportReply(mine=True, known=False)
    mine = not record.deleted and (record.runner, record.term) == (runner, report.term)
    # A process with an older epoch was replaced, and its report may be older than the changes of its
    # successor.
    if not mine or report.runner_epoch < record.runner_epoch:
        return None, _verdict(record, mine=mine)
    if report.missing and record.dirty:
        if report.missing_at is not None and report.missing_at < record.generation:
            # A repeat of this report was recorded, and the workspace has changed since: the files exist.
            return None, _verdict(record, mine=True)
        return _moved(record, runner), _verdict(record, mine=False)
    changed = record.model_copy(update=_changes(record, report) | _initial_files(assistant))
    verdict = _verdict(changed, mine=True)
    if assistant is not None:
        verdict = verdict.model_copy(update={"files": assistant.files})
    return (changed if changed != record else None), verdict


def _changes(record: WorkspaceOwner, report: WorkspaceReport) -> dict[str, object]:
    """Return the fields that a report of the workspace's own runner changes."""
    changes: dict[str, object] = {"gone_since": None}
    if report.begins and report.generation > record.generation:
        changes |= {"dirty": True, "generation": report.generation}
    if report.snapshot is not None and _is_newer(report.snapshot, record.snapshot):
        changes["snapshot"] = report.snapshot
        # A snapshot of an earlier generation does not contain the changes that began after it.
        if report.complete and report.generation == record.generation:
            changes["dirty"] = False
    if report.lost is not None:
        changes["loss"] = WorkspaceLoss(term=record.term, snapshot_ts=None, reason=report.lost)
    return changes


def _initial_files(assistant: Assistant | None) -> dict[str, object]:
    """Return the fields for the assistant's files, with which a workspace starts."""
    if assistant is None or not assistant.files:
        return {}
    return {"assistant": assistant.id, "assistant_revision": assistant.revision}


def _is_newer(snapshot: SnapshotRef, known: SnapshotRef | None) -> bool:
    """Return whether a snapshot is the known one or was created after it: reports may arrive late."""
    return known is None or snapshot.created_at >= known.created_at


def place_of(record: WorkspaceOwner) -> WorkspacePlacement:
    return WorkspacePlacement(
        term=record.term,
        generation=record.generation,
        snapshot=record.snapshot,
    )


def _new(chosen: RunnerLease) -> WorkspaceOwner:
    return WorkspaceOwner(runner=chosen.runner, runner_epoch=chosen.runner_epoch)


def _served(record: WorkspaceOwner, by: RunnerLease) -> PlacementDecision:
    served = {"runner_epoch": by.runner_epoch, "gone_since": None}
    return PlacementDecision(record.model_copy(update=served), serves=True)


def _moved(record: WorkspaceOwner, to: str) -> WorkspaceOwner:
    """Return the record of a workspace that begins a term with its last snapshot."""
    term = record.term + 1
    loss = record.loss
    if record.dirty:
        loss = WorkspaceLoss(term=term, snapshot_ts=record.snapshot and record.snapshot.created_at)
    moved = {"runner": to, "term": term, "dirty": False, "loss": loss}
    return record.model_copy(update=moved)


def _verdict(record: WorkspaceOwner, *, mine: bool) -> WorkspaceReportReply:
    snapshot = None if record.deleted else record.snapshot
    if snapshot is not None and not mine:
        # Any runner may report about any workspace, and any runner may read the snapshot.
        snapshot = snapshot.model_copy(update={"key": None})
    return WorkspaceReportReply(
        mine=mine, generation=record.generation, dirty=record.dirty, snapshot=snapshot
    )


@dataclass
class LocalWorkspace:
    """What a runner process knows about a workspace that it has or is about to get."""

    term: int = 0
    """The term of the directory; 0 when there is none."""
    generation: int = 0
    changed: bool = False
    """True once the record states that the files may differ from the last snapshot. While False nothing may
    change them, so a new process begins with False, whatever an earlier one reported."""
    users: int = 0
    """Number of requests that were admitted and have not ended."""
    edits: int = 0
    """Number of requests of this process that may have changed files. If it stays equal, no file changed."""
    past: int = 0
    """The newest term that is known to have ended here."""

    def admits(self, place: WorkspacePlacement) -> bool:
        """Return whether a request may run; False if it was placed before a move."""
        return place.term >= self.term and place.term > self.past

    def restored(self, place: WorkspacePlacement) -> None:
        """Record that the directory contains the files of a term, equal to the snapshot."""
        self.term, self.generation, self.changed = place.term, place.generation, False

    def report_of_change(self, runner_epoch: int) -> WorkspaceReport | None:
        """Return the report that must be accepted before the files may change; None when they may already."""
        if self.changed:
            return None
        return WorkspaceReport(
            runner_epoch=runner_epoch, term=self.term, generation=self.generation + 1, begins=True
        )

    def apply(self, verdict: WorkspaceReportReply) -> None:
        """Apply the record of a workspace that this runner has."""
        self.generation = max(self.generation, verdict.generation)
        self.changed = verdict.dirty
