"""One call of an owner: what the owner knows about it, and the next step to its one result. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.bus.storage.slots import AttemptSlots
from banksman.contracts.approvals import ApprovalItem
from banksman.contracts.calls import CallReply, CallStarted
from banksman.contracts.ids import attempt_id
from banksman.contracts.tools import ErrorKind, ToolResult, failed
from banksman.runs.outcome import Ending
from banksman.runs.ports import Placement
from banksman.runs.state import OpenCall

REPEAT_S = 2.0
"""Seconds after which the request for a call without a start or a result is repeated."""
BUSY_S = 0.25
"""Seconds before a request to a busy runner is repeated."""
CANCEL_GRACE_S = 2.0
"""Seconds in which a cancelled call may store its own result."""
OVERTIME_S = 5.0
"""Seconds beyond its time-out after which the owner cancels a call that its runner has not ended."""
NO_RUNNER_S = 75.0
"""Seconds without a reply of any runner, after which a call ends as `unavailable`. Longer than the 60 seconds
that a changed workspace waits for its runner."""
NO_RUNNER = "No runner could take this call."
MAX_LOST_RUNNERS = 3
"""Runners that may die with an idempotent call before it ends as `unavailable`: the call may kill them."""


@dataclass
class CallAttempt:
    open_call: OpenCall
    number: int = 1
    """The number of the current attempt."""
    fresh: bool = True
    """False when another process may have used the slots of this call: an earlier owner, or a second
    runner."""
    placement: Placement | None = None
    """The process that this owner sent the current attempt to; None before the first request."""
    accepted: bool = False
    """Whether the last reply of `placement` was `accepted`."""
    ever_accepted: bool = False
    """Whether any reply was `accepted`. A dead process does not reply, and its successor replies
    `wrong_epoch`."""
    requested_at: datetime | None = None
    repeat_at: datetime | None = None
    """When the request is repeated; None before the first request."""
    no_runner_since: datetime | None = None
    """Since when no runner has replied; None if the last request had a reply."""
    cancel_sent_at: datetime | None = None
    approved: ApprovalItem | None = None
    """The call as the approval request lists it; None if it needs no approval, or was edited."""
    approved_until: datetime | None = None
    """When the approval of the call expires; a call that has not started by then never starts. None without
    approval."""
    given_up: str | None = None
    """Why the owner sends no more requests for the call; None while it may send one."""
    given_up_kind: ErrorKind = "unavailable"
    needs_sign_in: bool = False
    """Whether it was given up because a user has not signed in."""
    started_seen_at: datetime | None = None
    lost_runners: int = 0
    """Number of runners that accepted the call and died before it had a result."""

    @property
    def call_id(self) -> str:
        return self.open_call.call.id

    @property
    def attempt(self) -> str:
        return attempt_id(self.call_id, self.number)

    @property
    def slots_removable(self) -> bool:
        """True when no other process can hold a request for this call.

        A runner that was cut off would find any other removed slot free, and execute the call again.
        """
        return self.fresh and self.number == 1 and self.cancel_sent_at is None

    def is_stale(self, now: datetime) -> bool:
        """Return whether a notification about the last request may have been lost."""
        return self.requested_at is not None and now - self.requested_at >= timedelta(seconds=REPEAT_S)

    def note_reply(self, reply: CallReply | None, now: datetime) -> None:
        """Record the reply to a request; None when no runner replied."""
        # Without a reply, as with `wrong_epoch`, the process may have ended: place the call again soon.
        kind = "wrong_epoch" if reply is None else reply.answer
        self.accepted = kind == "accepted"
        self.ever_accepted = self.ever_accepted or self.accepted
        # A busy runner is alive, so a call that waits for it is not given up.
        self.no_runner_since = (self.no_runner_since or now) if kind == "wrong_epoch" else None
        delay_s = BUSY_S if kind in ("busy", "wrong_epoch") else REPEAT_S
        self.repeat_at = now + timedelta(seconds=delay_s)
        if reply is not None and kind == "refused":
            self.given_up = reply.reason or "The runner refused the call."
            self.needs_sign_in = reply.sign_in
        if kind == "done":
            # The call ended, and the notification of its result was lost: read the slots.
            self.fresh = False

    def begin_next(self) -> None:
        self.number += 1
        self.placement = None
        self.accepted = False
        self.ever_accepted = False
        self.requested_at = None
        self.repeat_at = None
        self.no_runner_since = None
        self.started_seen_at = None
        self.cancel_sent_at = None


@dataclass(frozen=True, slots=True)
class Conclude:
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to a runner."""


@dataclass(frozen=True, slots=True)
class Void:
    """Fill the start slot, so that the attempt can never start.

    Several owners may handle a call at once, so the stored void decides whether another attempt follows.
    """

    moved: bool
    """True when another attempt follows; False when the call ends without being executed."""


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The attempt can never start, and another follows."""


@dataclass(frozen=True, slots=True)
class SendCancel:
    runner: Placement


@dataclass(frozen=True, slots=True)
class Declare:
    """Store a result in place of the runner; the first result that is stored counts."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until this time, or until a start or a result is stored."""

    until: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str
    kind: ErrorKind = "unavailable"


CallStep = Conclude | Dispatch | Void | NextAttempt | SendCancel | Declare | Wait | GiveUp


def call_step(
    call: CallAttempt, slots: AttemptSlots, *, runner_alive: bool, ending: Ending | None, now: datetime
) -> CallStep:
    """Return what to do next about one call.

    `runner_alive` is whether the process that started the call, or got its request, may still execute it.
    """
    if slots.finished is not None:
        return Conclude(slots.finished.result)
    if slots.started is not None and slots.started.void:
        return _after_void(call, slots.started, ending)
    if slots.started is not None:
        return _after_start(call, slots.started, runner_alive, ending, now)
    return _before_start(call, runner_alive, ending, now)


def unknown_outcome(call_id: str, why: str) -> ToolResult:
    text = (
        f"The outcome of this call is unknown: {why}. It started and may have had effects, "
        "wholly or in part. It was not repeated. Check before doing it again."
    )
    return failed(call_id, "unknown_outcome", text)


def _after_void(call: CallAttempt, void: CallStarted, ending: Ending | None) -> CallStep:
    # The stored void decides, and not the intent of this owner: another owner may have stored the void.
    if void.moved:
        return NextAttempt()
    if ending is not None:
        return Conclude(failed(call.call_id, ending.call_kind, f"Not executed. {ending.message}"))
    result = failed(call.call_id, call.given_up_kind, call.given_up or NO_RUNNER)
    if call.needs_sign_in:
        result = result.model_copy(update={"content": {**result.content, "sign_in": True}})
    return Conclude(result)


def _after_start(
    call: CallAttempt, started: CallStarted, runner_alive: bool, ending: Ending | None, now: datetime
) -> CallStep:
    if not runner_alive or started.runner is None:
        # Never repeated: what the runner did before it died is unknown.
        return Declare(unknown_outcome(call.call_id, "the machine that ran it was lost"))
    # The runner ends the call at its time-out. The owner cancels only a call that exceeds it.
    seen = call.started_seen_at or now
    overdue = seen + timedelta(seconds=call.open_call.call.timeout_s + OVERTIME_S)
    if ending is None and now < overdue:
        return Wait(min(overdue, now + timedelta(seconds=REPEAT_S)))
    if call.cancel_sent_at is None:
        return SendCancel(Placement(started.runner, started.runner_epoch))
    grace_ends = call.cancel_sent_at + timedelta(seconds=CANCEL_GRACE_S)
    if now < grace_ends:
        return Wait(grace_ends)
    return Declare(unknown_outcome(call.call_id, "it did not end after it was cancelled"))


def _before_start(call: CallAttempt, runner_alive: bool, ending: Ending | None, now: datetime) -> CallStep:
    if ending is not None or call.given_up is not None:
        return _prevent(call, ending)
    # Checked again right before the start: the approval may have expired while no runner was live.
    if call.approved_until is not None and now > call.approved_until:
        return GiveUp("Its approval expired before it could begin.", "not_executed")
    if call.placement is not None and not runner_alive and not call.open_call.call.idempotent:
        # The dead runner may have been about to start the call. The void decides before another runner gets
        # the request.
        return Void(moved=True)
    if call.no_runner_since and now >= call.no_runner_since + timedelta(seconds=NO_RUNNER_S):
        return GiveUp(NO_RUNNER)
    # The repeat has the same attempt, so a runner that has the call already replies `accepted` and starts
    # nothing.
    if call.repeat_at is None or now >= call.repeat_at:
        return Dispatch()
    return Wait(call.repeat_at)


def _prevent(call: CallAttempt, ending: Ending | None) -> CallStep:
    if not call.open_call.call.idempotent:
        return Void(moved=False)
    # An idempotent call stores no start, so a void would prevent nothing: the call is cancelled, and a result
    # stored.
    if call.placement is not None and call.cancel_sent_at is None:
        return SendCancel(call.placement)
    kind: ErrorKind = ending.call_kind if ending is not None else call.given_up_kind
    text = ending.message if ending is not None else call.given_up or ""
    return Declare(failed(call.call_id, kind, f"Not executed. {text}"))
