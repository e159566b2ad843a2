"""The state of a conversation: the fold of its log, as data.

`banksman.runs.fold` computes it from the commits. Snapshots store it, so a field that is renamed or retyped
makes older snapshots unreadable (`snapshots.snapshot_form`), and their logs are folded from the start again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from banksman.contracts import events
from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved, InputRequested, InputResolved
from banksman.contracts.assistants import RunSettings
from banksman.contracts.messages import UNKNOWN, Content, Message, Provenance, Usage, UserMessage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.runs.history import LeftPath

T = TypeVar("T")

NO_USAGE = Usage()

CRASH_LOOP_CLAIMS = 5
"""Consecutive claims without another commit that end a run as `crash_loop`."""

CLOSED_BY_SIGNAL = frozenset({"cancelled", "superseded"})
"""Outcomes of an approval request that a cancel, a message or the end of its run closed. The process that
closed it also resumes the run. If the run resumed before the cause is in the log, the next model request
would lack the cause."""
CLOSED_UNDECIDED = CLOSED_BY_SIGNAL | {"expired"}
"""Outcomes of an approval request that closed without a decision."""

REMEMBERED_IDS = 1_000
"""Number of the newest ids of each kind that the state remembers at any age."""
REMEMBERED_FOR = timedelta(days=2)
"""Age, relative to the newest id, below which an id is remembered however many follow it."""

Gate = Literal["free", "waiting", "approved", "rejected", "withdrawn", "awaiting"]
"""
free       needs no approval
waiting    awaits a decision
approved   approved, perhaps with edited arguments
rejected   rejected
withdrawn  its approval request, or that of an earlier call, closed without a decision (expired, cancelled,
           superseded)
awaiting   awaits a value: of a workflow's step, it becomes the result; the server of a call continues with it
"""


@dataclass(frozen=True)
class OpenCall:
    call: ToolCall
    """The call with the arguments to execute: edited arguments replace the model's."""
    gate: Gate = "free"
    edited: bool = False
    reason: str | None = None
    """The approver's reason for a rejection."""
    arguments_error: str | None = None
    """Why the model's arguments cannot be read, or `over_limit`; such a call is never executed."""
    over_limit: bool = False
    """True for a call beyond the limit of calls per reply."""
    answer: InputResolved | None = None
    """The answer to what the call's server requested last; the next attempt takes it there."""
    attempt: int = 1
    """The number of the first attempt that may still be sent."""
    result: ToolResult | None = None


@dataclass(frozen=True)
class OpenApproval:
    """The approval request of the current iteration, and its resolution."""

    request: ApprovalRequested
    resolved: ApprovalResolved | None = None
    escalated: bool = False


@dataclass(frozen=True)
class QueuedRun:
    run_id: str
    message_id: str
    message: Content
    settings: RunSettings
    provenance: Provenance = UNKNOWN


@dataclass(frozen=True)
class Run:
    run_id: str
    settings: RunSettings
    message: UserMessage
    started_at: datetime
    iteration: int = 0
    asking: bool = False
    """True from `iteration.started` until the model's reply is committed."""
    asked_at: datetime | None = None
    """The time of the last `iteration.started`."""
    compactions: int = 0
    """Compactions since the last `iteration.started`."""
    final: str | None = None
    """The text of the last reply if it contained no call; None otherwise."""
    malformed: int = 0
    """Consecutive unreadable replies."""
    malformed_before: int = 0
    """`malformed` before the current reply, whose arguments may still prove unreadable."""
    answered_by: str = ""
    """`provider:model` that wrote the last reply; empty before the first."""
    calls: tuple[OpenCall, ...] = ()
    """The calls of the current iteration, with or without a result."""
    approval: OpenApproval | None = None
    inputs: tuple[InputRequested, ...] = ()
    """The values that the current iteration requested, with or without a reply."""
    cancel: events.CancelRequested | None = None
    steering: tuple[UserMessage, ...] = ()
    """User messages for the next model request."""
    imported: bool = False
    """True while an import writes it: nothing drives it."""
    tracked: tuple[events.TrackedCall, ...] = ()
    """Calls with their results, for the terminal event."""
    usage: Usage = NO_USAGE
    parked_at: datetime | None = None
    """Time at which it was parked; None while an agent drives it."""
    waited_s: float = 0.0
    """Seconds it was parked; they do not count towards `run_timeout_s`."""
    remembered: tuple[OpenApproval, ...] = ()
    """Approvals whose decisions apply to the rest of the run."""
    progress: events.WorkflowProgress | None = None
    """The last progress that a workflow reported."""
    progress_at: datetime | None = None

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        return tuple(call for call in self.calls if call.result is None)

    @property
    def undecided(self) -> bool:
        return self.approval is not None and self.approval.resolved is None

    @property
    def open_inputs(self) -> tuple[InputRequested, ...]:
        awaiting = {call.call.id for call in self.calls if call.gate == "awaiting" and call.result is None}
        return tuple(one for one in self.inputs if one.tool_call_id in awaiting)

    @property
    def request_ids(self) -> frozenset[str]:
        """Ids of the approval request and the input requests of the current iteration, open or not."""
        ids = {one.request_id for one in self.inputs}
        return frozenset(ids if self.approval is None else ids | {self.approval.request.approval_id})

    @property
    def waits(self) -> bool:
        """True while an approval request or a request for a value is open."""
        return self.undecided or bool(self.open_inputs)

    @property
    def status(self) -> events.RunStatus:
        if self.cancel is not None:
            return "cancelling"
        if self.undecided:
            return "awaiting_approval"
        return "awaiting_input" if self.open_inputs else "running"


@dataclass(frozen=True)
class Measured:
    """The size of one model request, counted by the vendor."""

    input_tokens: int
    messages: int
    """Number of messages of the history, from its start, in the request."""


@dataclass(frozen=True)
class Conversation:
    """The fold of a log up to and including the commit at `stream_seq`."""

    tenant: str
    conversation_id: str
    log_epoch: str = ""
    stream_seq: int = 0
    """Stream sequence of the last commit; 0 for an empty log."""
    last_seq: int = 0
    """`seq` of the last event; 0 for an empty log."""
    owner: events.Owner | None = None
    owner_epoch: int = 0
    """The epoch of the last claim."""
    claims_in_row: int = 0
    """Consecutive claims of different processes without another commit. At the limit, the count stays until
    the run has ended: the commits that end the run do not show that it works again."""
    claimants: frozenset[str] = frozenset()
    """Ids of the processes that made these claims."""
    run: Run | None = None
    queue: tuple[QueuedRun, ...] = ()
    ended: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of recent runs with a terminal event; see `with_ids`."""
    cancelled_early: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of recent runs that were cancelled before their start was in the log."""
    history: tuple[Message, ...] = ()
    """The messages of a model request; between iterations every provider accepts them."""
    left: tuple[LeftPath, ...] = ()
    """The messages that a branch left out of the history; a later branch can return to them."""
    remembered: tuple[OpenApproval, ...] = ()
    """Approvals whose decisions apply to the conversation."""
    linked: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of recent workflow runs that were started here; each has its own log."""
    compaction: events.HistoryCompacted | None = None
    """The newest compaction; its summary is the first message of the history."""
    heard: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of recent user messages that a compaction removed from the history."""
    measured: Measured | None = None
    """The last counted request since the newest compaction."""
    imported: int = 0
    """Number of imported events."""
    title: str = ""
    renamed: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Request ids of recent renames."""
    tombstone: int = 0
    """`seq` of the last event that marks the conversation as deleted; 0 while it is not."""
    restored_term: int = 0
    """The newest workspace term that began with a loss; 0 for none."""
    snapshot_seq: int = 0
    """Stream sequence of the newest snapshot; 0 for none."""
    since_snapshot: int = 0
    """Commits after the newest snapshot."""

    @property
    def deleted(self) -> bool:
        return self.tombstone > 0

    def knows(self, run_id: str) -> bool:
        is_open = self.run is not None and self.run.run_id == run_id
        return is_open or run_id in self.ended or any(queued.run_id == run_id for queued in self.queue)


def replace(value: T, **changes: Any) -> T:
    """Return a copy with some fields changed, in a tenth of the time of `dataclasses.replace`.

    The fold of a run copies a conversation and its run about a hundred times. Copying the dictionary of an
    object takes a sixth of the time of setting each field, so these classes have no slots.
    """
    fields = value.__dict__
    if not changes.keys() <= fields.keys():
        raise TypeError(f"{type(value).__name__} has no field {sorted(changes.keys() - fields.keys())}")
    copied = object.__new__(type(value))
    object.__setattr__(copied, "__dict__", fields | changes)
    return copied


def with_ids(ids: Mapping[str, datetime], *more: str, at: datetime) -> Mapping[str, datetime]:
    """Return the ids with `more` as the newest, without ids that may be forgotten.

    An id is forgotten if it is older than two days and at least `REMEMBERED_IDS` newer ids followed: a client
    may repeat its request with the same idempotency key for 24 hours. After an outage of days all ids are
    known.
    """
    kept = {**ids, **dict.fromkeys(more, at)}
    surplus = len(kept) - REMEMBERED_IDS
    oldest = list(kept.items())[: max(0, surplus)]
    for forgotten in [known for known, moment in oldest if at - moment > REMEMBERED_FOR]:
        del kept[forgotten]
    return kept


def without_id(ids: Mapping[str, datetime], removed: str) -> Mapping[str, datetime]:
    return {known: moment for known, moment in ids.items() if known != removed} if removed in ids else ids
