"""Moves of workspaces under crashes and lost or late reports: no change is lost without a report."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from banksman.contracts.calls import RunnerLease
from banksman.contracts.messages import AssistantMessage, ToolMessage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.workspaces import (
    SnapshotRef,
    WorkspaceLoss,
    WorkspaceOwner,
    WorkspacePlacement,
    WorkspaceReport,
    WorkspaceReportReply,
    WorkspaceRestored,
)
from banksman.runs.outcome import losses
from banksman.runs.runners.workspaces import LocalWorkspace, apply_report, decide_placement, place_of
from banksman.runs.state import Conversation

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
WAIT_S = 60.0
STEPS = 250
WORLDS = 300


@dataclass
class Waiting:
    """A report in flight, and the action of its sender on the response."""

    report: WorkspaceReport
    runner: str
    epoch: int
    change: int | None = None
    """The change that begins if the response allows it; None for a snapshot."""
    place: WorkspacePlacement | None = None
    """The place whose files are installed if the response allows it."""


@dataclass
class Runner:
    """A runner as the service builds it around `LocalWorkspace`; its stored state outlives it."""

    name: str
    epoch: int = 1
    up: bool = True
    local: LocalWorkspace = field(default_factory=LocalWorkspace)
    files: set[int] = field(default_factory=set[int])
    exists: bool = False
    """Whether the directory with the files exists."""
    stored_state: tuple[int, int] = (0, 0)
    """Term and generation, on disk."""
    pending: Waiting | None = None
    """The report whose response it waits for; meanwhile no request begins."""
    snapshotting: tuple[int, frozenset[int], datetime] | None = None
    """Edits, files and time of the snapshot that is being stored."""

    def keep(self) -> None:
        self.stored_state = (self.local.term, self.local.generation)

    def restart(self) -> None:
        self.epoch, self.up, self.pending, self.snapshotting = self.epoch + 1, True, None, None
        self.local = LocalWorkspace(*self.stored_state)


class World:
    """One workspace, three runners, one record."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = EPOCH
        self.record: WorkspaceOwner | None = None
        self.runners = [Runner(name) for name in ("r1", "r2", "r3")]
        self.leases: dict[str, int] = {runner.name: 1 for runner in self.runners}
        self.store: dict[str, frozenset[int]] = {}
        self.mail: list[tuple[str, int, WorkspacePlacement, int]] = []
        self.reports: list[Waiting] = []
        self.changes = 0
        self.done: dict[int, int] = {}
        """The changes that were made, with their term."""
        self.moves = 0

    def step(self) -> None:
        self.chance.choice(
            [
                *(self.call, self.call, self.receive, self.receive, self.report, self.report, self.report),
                *(self.snapshot, self.snapshot_stored, self.lose_response, self.read_record),
                *(self.crash, self.restart, self.lease_ends, self.time, self.lose_volume),
            ]
        )()

    def lease(self, name: str) -> RunnerLease | None:
        epoch = self.leases.get(name)
        return None if epoch is None else RunnerLease(runner=name, runner_epoch=epoch)

    def call(self) -> None:
        """Place a call that changes a file, and send it."""
        alive = [lease for name in self.leases if (lease := self.lease(name)) is not None]
        holder = None if self.record is None else self.lease(self.record.runner)
        chosen = self.chance.choice(alive) if alive else None
        should = decide_placement(self.record, holder=holder, chosen=chosen, now=self.now, wait_s=WAIT_S)
        if should is None:
            return
        self.moves += self.record is not None and self.record.runner != should.record.runner
        self.record = should.record
        if should.serves:
            self.changes += 1
            place = place_of(self.record)
            self.mail.append((self.record.runner, self.record.runner_epoch, place, self.changes))

    def receive(self) -> None:
        """Deliver a call to a runner, possibly late."""
        if not self.mail:
            return
        name, epoch, place, change = self.mail.pop(self.chance.randrange(len(self.mail)))
        runner = next(one for one in self.runners if one.name == name)
        if not runner.up or runner.epoch != epoch or runner.pending or not runner.local.admits(place):
            return
        if place.term > runner.local.term or not runner.exists:
            self.report_arrival(runner, change, place, place.generation)
        else:
            self.begin_change(runner, change)

    def report_arrival(self, runner: Runner, change: int, place: WorkspacePlacement, generation: int) -> None:
        """Report that a runner has no files of a term, as it does before it installs them."""
        report = WorkspaceReport(
            runner_epoch=runner.epoch, term=place.term, missing=True, missing_at=generation
        )
        runner.pending = Waiting(report, runner.name, runner.epoch, change, place)
        self.reports.append(runner.pending)

    def install(self, runner: Runner, waiting: Waiting, verdict: WorkspaceReportReply) -> None:
        """Install the files of a term after the response to the report of their absence."""
        assert waiting.place is not None and waiting.change is not None
        if not verdict.mine:
            runner.local.past = waiting.place.term
        elif verdict.dirty and verdict.generation > (waiting.report.missing_at or 0):
            self.report_arrival(runner, waiting.change, waiting.place, verdict.generation)
        else:
            runner.files = set(self.store[waiting.place.snapshot.id]) if waiting.place.snapshot else set()
            runner.exists = True
            runner.local.restored(waiting.place)
            runner.snapshotting = None
            runner.keep()
            self.begin_change(runner, waiting.change)

    def begin_change(self, runner: Runner, change: int) -> None:
        report = runner.local.report_of_change(runner.epoch)
        if report is None:
            self.change(runner, change)
        else:
            runner.pending = Waiting(report, runner.name, runner.epoch, change)
            self.reports.append(runner.pending)

    def change(self, runner: Runner, change: int) -> None:
        """Execute a call; it must see every change that was not reported as lost."""
        assert self.record is not None
        runner.local.edits += 1
        if self.leases.get(runner.name) == runner.epoch:
            reported_term = self.record.loss.term if self.record.loss else 0
            if runner.local.term == self.record.term:
                missing = {
                    old
                    for old, term in self.done.items()
                    if old not in runner.files and term >= reported_term
                }
                assert not missing, f"{runner.name} works without {missing}, and no loss was reported"
        runner.files.add(change)
        self.done[change] = runner.local.term

    def report(self) -> None:
        """Handle a report: possibly late, possibly twice, and its response may be lost."""
        if not self.reports:
            return
        waiting = self.chance.choice(self.reports)
        if self.chance.random() < 0.8:
            self.reports.remove(waiting)
        record, verdict = apply_report(self.record, waiting.runner, waiting.report)
        runner = next(one for one in self.runners if one.name == waiting.runner)
        if record is not None and self.record is not None and record.term > self.record.term:
            absent = not runner.exists or runner.local.term < waiting.report.term
            assert absent, f"the files of {runner.name} were given up"
        self.record = record or self.record
        if runner.pending is waiting and runner.up and self.chance.random() < 0.8:
            runner.pending = None
            self.handle_verdict(runner, waiting, verdict)

    def handle_verdict(self, runner: Runner, waiting: Waiting, verdict: WorkspaceReportReply) -> None:
        if waiting.place is not None:
            self.install(runner, waiting, verdict)
            return
        if not verdict.mine:
            return
        runner.local.apply(verdict)
        runner.keep()
        if waiting.change is not None and runner.local.changed:
            self.change(runner, waiting.change)

    def lose_response(self) -> None:
        """End the wait of a runner for a response."""
        runner = self.chance.choice(self.runners)
        if runner.pending is not None:
            runner.local.changed = runner.local.changed and not runner.pending.report.complete
            runner.pending = None

    def read_record(self) -> None:
        """Let a runner request the record, as it does after its start and after a missing response."""
        runner = self.chance.choice(self.runners)
        if runner.up and runner.pending is None and runner.local.term:
            local = runner.local
            report = WorkspaceReport(runner_epoch=runner.epoch, term=local.term, generation=local.generation)
            runner.pending = Waiting(report, runner.name, runner.epoch)
            self.reports.append(runner.pending)

    def snapshot(self) -> None:
        runner = self.chance.choice(self.runners)
        if runner.up and runner.pending is None and runner.snapshotting is None and runner.local.changed:
            runner.snapshotting = (runner.local.edits, frozenset(runner.files), self.now)

    def snapshot_stored(self) -> None:
        runner = self.chance.choice(self.runners)
        if not runner.up or runner.pending is not None or runner.snapshotting is None:
            return
        edits, files, moment = runner.snapshotting
        runner.snapshotting = None
        snapshot = f"s{len(self.store)}"
        self.store[snapshot] = files
        report = WorkspaceReport(
            runner_epoch=runner.epoch,
            term=runner.local.term,
            generation=runner.local.generation,
            snapshot=SnapshotRef(
                id=snapshot, manifest_digest="0" * 64, created_at=moment, stored_by=runner.name
            ),
            complete=runner.local.edits == edits,
        )
        runner.pending = Waiting(report, runner.name, runner.epoch)
        self.reports.append(runner.pending)

    def crash(self) -> None:
        self.chance.choice(self.runners).up = False

    def lose_volume(self) -> None:
        """Delete the files of a runner; one that is stopped also loses its state."""
        runner = self.chance.choice(self.runners)
        if runner.pending is None and self.chance.random() < 0.2:
            runner.files, runner.exists, runner.snapshotting = set(), False, None
            if not runner.up:
                runner.stored_state = (0, 0)

    def restart(self) -> None:
        runner = self.chance.choice(self.runners)
        if not runner.up:
            runner.restart()
            self.leases[runner.name] = runner.epoch

    def lease_ends(self) -> None:
        """End the lease of a stopped runner, or of one that ends because it could not renew."""
        runner = self.chance.choice(self.runners)
        if self.chance.random() < 0.5:
            runner.up = False
            self.leases.pop(runner.name, None)

    def time(self) -> None:
        self.now += timedelta(seconds=self.chance.choice([1, 5, 40]))


def test_no_change_is_lost_without_a_report() -> None:
    """P2, P9. Messages are late, lost or repeated, in several hundred schedules with fixed seeds."""
    moved = losses_reported = 0
    for seed in range(WORLDS):
        world = World(seed)
        for _ in range(STEPS):
            world.now += timedelta(milliseconds=1)
            world.step()
        moved += world.moves
        losses_reported += world.record is not None and world.record.loss is not None
    assert moved > WORLDS / 10 and losses_reported


def owner(**fields: object) -> WorkspaceOwner:
    return WorkspaceOwner(runner="r1", runner_epoch=1).model_copy(update=fields)


def report(**fields: object) -> WorkspaceReport:
    return WorkspaceReport(runner_epoch=1, term=1, generation=1).model_copy(update=fields)


def snapshot(moment: datetime = EPOCH) -> SnapshotRef:
    return SnapshotRef(id="s1", manifest_digest="0" * 64, created_at=moment, stored_by="r1")


def test_a_late_snapshot_report_does_not_hide_a_newer_change() -> None:
    complete = report(snapshot=snapshot(), complete=True)
    record, _ = apply_report(owner(dirty=True, generation=2), "r1", complete)
    assert record is not None and record.dirty and record.snapshot == snapshot()


def test_a_late_snapshot_does_not_replace_a_newer_one() -> None:
    newer = snapshot(EPOCH + timedelta(seconds=1))
    record, _ = apply_report(
        owner(snapshot=newer, generation=1), "r1", report(snapshot=snapshot(), complete=True)
    )
    assert record is None


@pytest.mark.parametrize(
    "record",
    [owner(runner="r2"), owner(term=2), owner(deleted=True)],
    ids=["another runner's", "a later term", "deleted"],
)
def test_a_runner_detects_that_it_no_longer_has_a_workspace(record: WorkspaceOwner) -> None:
    changed, verdict = apply_report(record, "r1", report(begins=True))
    assert changed is None and not verdict.mine


def test_a_workspace_without_a_record_is_not_removed() -> None:
    assert apply_report(None, "r1", report()) == (None, WorkspaceReportReply(mine=True, known=False))


def test_an_earlier_process_of_a_runner_changes_nothing() -> None:
    changed, verdict = apply_report(owner(runner_epoch=2), "r1", report(begins=True))
    assert changed is None and verdict.mine and not verdict.dirty


@pytest.mark.parametrize(
    ("local", "admitted"),
    [
        (LocalWorkspace(), {1, 2, 3, 4}),
        (LocalWorkspace(term=3), {3, 4}),
        (LocalWorkspace(term=3, past=3), {4}),
        (LocalWorkspace(past=2), {3, 4}),
    ],
    ids=["without files", "with those of a term", "which were given away", "and removed"],
)
def test_a_request_from_before_a_move_is_refused(local: LocalWorkspace, admitted: set[int]) -> None:
    assert {term for term in (1, 2, 3, 4) if local.admits(WorkspacePlacement(term=term))} == admitted


def test_a_changed_workspace_of_a_draining_runner_does_not_move() -> None:
    ending = RunnerLease(runner="r1", runner_epoch=1, serving=False)
    other = RunnerLease(runner="r2", runner_epoch=1)
    late = EPOCH + timedelta(days=1)
    record = owner(dirty=True, gone_since=EPOCH)
    assert decide_placement(record, holder=ending, chosen=other, now=late, wait_s=WAIT_S) is None
    given = decide_placement(
        record.model_copy(update={"dirty": False}), holder=ending, chosen=other, now=late, wait_s=0
    )
    assert given is not None and given.serves and given.record.runner == "r2"


def conversation(*results: ToolResult, term: int = 0) -> Conversation:
    calls = tuple(ToolCall(id=result.tool_call_id, name="bash") for result in results)
    reply = AssistantMessage(message_id="m1", content=None, calls=calls)
    messages = tuple(ToolMessage(name="bash", result=result) for result in results)
    return Conversation("acme", "c1", history=(reply, *messages), restored_term=term)


def result(call_id: str, at: int | None, **fields: object) -> ToolResult:
    moment = None if at is None else EPOCH + timedelta(seconds=at)
    made = ToolResult(tool_call_id=call_id, content={}, runner="r1" if at is not None else None)
    return made.model_copy(update={"started_at": moment, **fields})


def test_a_loss_names_the_calls_after_the_snapshot() -> None:
    unknown = result("k3", None, error_kind="unknown_outcome")
    state = conversation(result("k1", 1), result("k2", 9), unknown, result("k4", None))
    loss = WorkspaceLoss(term=2, snapshot_ts=EPOCH + timedelta(seconds=5))
    assert losses(state, [None, loss]) == [
        WorkspaceRestored(snapshot_ts=loss.snapshot_ts, lost_calls=("k2", "k3"), term=2)
    ]


def test_a_loss_without_a_snapshot_names_every_call() -> None:
    loss = WorkspaceLoss(term=2, snapshot_ts=None)
    (event,) = losses(conversation(result("k1", 1), result("k2", 9)), [loss])
    assert event.lost_calls == ("k1", "k2")


def test_a_loss_is_logged_once() -> None:
    loss = WorkspaceLoss(term=2, snapshot_ts=None)
    assert losses(conversation(result("k1", 1), term=2), [loss, loss]) == []
