"""Decisions about the process of a call and the runner of a workspace, and when a workspace may move.

A workspace is at one runner at a time, for a *term*. While it is unchanged since its last snapshot, any
runner may take it over at once. A workspace that may have changed waits for its runner.

A runner reports "changed" before it lets the first change begin. The record is written by compare-and-set, so
one of two things happens: the report is first, and the workspace waits; or the move is first, and the runner
learns that it no longer has the workspace. The *generation* rises each time a workspace begins to change, so
that a late report is recognised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self, TypeVar

from banksman.bus.storage.kv import Entry
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
from banksman.runs.ports import Placement

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlacementDecision:
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
    """Return the placement for the next request; None when nothing can be sent or is to be stored.

    `record` is None for a new workspace, `holder` when the record's runner has no lease, `chosen` when no
    runner accepts workspaces.
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
    """Return the record to store after a runner's report, None when it does not change, and the reply.

    `assistant` is that of the conversation, for a workspace that starts.
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
    changes: dict[str, object] = {"gone_since": None}
    if report.begins and report.generation > record.generation:
        changes |= {"dirty": True, "generation": report.generation}
    if report.snapshot is not None and _is_newer(report.snapshot, record.snapshot):
        changes["snapshot"] = report.snapshot
        # A snapshot of an earlier generation does not contain the changes that began after it.
        if report.complete and report.generation == record.generation:
            changes["dirty"] = False
    if report.processes is not None:
        changes["processes"] = report.processes
    if report.lost is not None:
        changes["loss"] = WorkspaceLoss(term=record.term, snapshot_ts=None, reason=report.lost)
    return changes


def _initial_files(assistant: Assistant | None) -> dict[str, object]:
    if assistant is None or not assistant.files:
        return {}
    return {"assistant": assistant.id, "assistant_revision": assistant.revision}


def _is_newer(snapshot: SnapshotRef, known: SnapshotRef | None) -> bool:
    """Return whether a snapshot is the known one or was created after it: reports may arrive late."""
    return known is None or snapshot.created_at >= known.created_at


def place_of(record: WorkspaceOwner) -> WorkspacePlacement:
    return WorkspacePlacement(
        term=record.term, generation=record.generation, snapshot=record.snapshot, processes=record.processes
    )


def _new(chosen: RunnerLease) -> WorkspaceOwner:
    return WorkspaceOwner(runner=chosen.runner, runner_epoch=chosen.runner_epoch)


def _served(record: WorkspaceOwner, by: RunnerLease) -> PlacementDecision:
    served = {"runner_epoch": by.runner_epoch, "gone_since": None}
    return PlacementDecision(record.model_copy(update=served), serves=True)


def _moved(record: WorkspaceOwner, to: str) -> WorkspaceOwner:
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
        self.term, self.generation, self.changed = place.term, place.generation, False

    def report_of_change(self, runner_epoch: int) -> WorkspaceReport | None:
        """Return the report that must be accepted before the files may change; None when they may already."""
        if self.changed:
            return None
        return WorkspaceReport(
            runner_epoch=runner_epoch, term=self.term, generation=self.generation + 1, begins=True
        )

    def apply(self, verdict: WorkspaceReportReply) -> None:
        self.generation = max(self.generation, verdict.generation)
        self.changed = verdict.dirty


@dataclass(frozen=True, slots=True)
class ToolServerProcess:
    """One live process of a tool server. Each has its own lease, and any of them may take a call."""

    placement: Placement
    """The server, and the epoch of the process, which no other process ever has."""
    tenant: str | None
    """The tenant that the server serves; None for a server that serves all tenants."""
    load: int
    """Number of running and waiting calls."""
    serving: bool
    """False if it accepts no more calls."""

    @classmethod
    def of(cls, entry: Entry[RunnerLease]) -> Self | None:
        """Return the process that holds a lease; None for the lease of a runner, or an unknown key.

        The identity comes from the key alone, because a tenant may write anything into the value.
        """
        match entry.key.split("."):
            case [server, epoch] if epoch.isdecimal():
                tenant = None
            case [server, tenant, epoch] if epoch.isdecimal():
                pass
            case _:
                return None
        return cls(Placement(server, int(epoch)), tenant, entry.value.load, entry.value.serving)


def least_loaded(processes: Iterable[ToolServerProcess]) -> Placement | None:
    least = _least((process for process in processes if process.serving), lambda process: process.load)
    return least and least.placement


def _least(candidates: Iterable[T], load: Callable[[T], int]) -> T | None:
    """Return one of the candidates with the least load; None without candidates."""
    shuffled = list(candidates)
    random.shuffle(shuffled)
    return min(shuffled, key=load, default=None)


class RunnerLoads:
    """The loads of the runners, as known to this process.

    A runner reports its load once a second. Workspaces that this process has placed since then count too, or
    a burst of new conversations would all go to the runner that was idle a moment ago.
    """

    def __init__(self) -> None:
        self._placed: dict[str, tuple[int, int]] = {}
        """By runner: the last seen revision of its lease, and the number of workspaces placed since."""

    def least_loaded(self, leases: Iterable[Entry[RunnerLease]]) -> RunnerLease | None:
        """Return one of the runners with the least load; None when none accepts workspaces."""
        accepting = (entry for entry in leases if _accepts_workspaces(entry))
        least = _least(accepting, lambda entry: entry.value.load + self._placed_since(entry))
        return least and least.value

    def add(self, runner: str) -> None:
        revision, count = self._placed.get(runner, (0, 0))
        self._placed[runner] = (revision, count + 1)

    def _placed_since(self, entry: Entry[RunnerLease]) -> int:
        revision, count = self._placed.get(entry.key, (0, 0))
        if revision != entry.revision:
            count = 0
            self._placed[entry.key] = (entry.revision, 0)
        return count


def _accepts_workspaces(entry: Entry[RunnerLease]) -> bool:
    # The lease key of a runner has no dot; the keys of tool servers have one.
    return "." not in entry.key and entry.value.serving and entry.value.workspaces
