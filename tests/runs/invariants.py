"""The invariants of the protocol, checked at every commit, effect, ack and deleted slot, and at rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved
from banksman.contracts.calls import CallRequest
from banksman.contracts.events import (
    CancelRequested,
    Commit,
    Event,
    MessageCompleted,
    RunFinished,
    RunQueued,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.runs.approval.requests import DECIDED, problem
from banksman.runs.state import Conversation
from banksman.runs.steps import Idle, Park, next_step
from tests.runs.plans import calls_without_result
from tests.runs.processes import Message, Process

if TYPE_CHECKING:
    from tests.runs.world import World

CLAIMS_IN_A_ROW = 5
NEVER_STARTED = frozenset({"invalid_arguments", "rejected", "not_executed", "unavailable"})
MAY_HAVE_STARTED = frozenset({"unknown_outcome", "cancelled", "timeout"})

AFTER = {"start": ("start", "steer"), "steer": ("start", "steer", "cancel"), "cancel": ("steer",)}
"""The kinds of messages after which a message must be recorded, if they were stored before it. A cancel may
precede the start of its run, which ends at once."""


class InvariantChecker:
    """Records events without the fold, which it checks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.accepted: set[str] = set()
        self.calls: dict[str, ToolCall] = {}
        self.requested: dict[str, ApprovalRequested] = {}
        self.calls_with_request: dict[str, str] = {}
        """The approval request of each call that needs one."""
        self.replies: dict[tuple[str | None, int | None], list[str]] = {}
        """The calls of each iteration in their order."""
        self.aborted_by_rejection: set[str | None] = set()
        """Runs that a rejection ends."""
        self.resolved: dict[str, ApprovalResolved] = {}
        self.approved: dict[str, str] = {}
        """The approved digest of each call that a user approved."""
        self.results: dict[str, ToolResult] = {}
        self.effects: dict[str, int] = {}
        self.starts: dict[str, str] = {}
        """The runner that stored the start of each attempt."""
        self.ended: dict[str, RunFinished] = {}
        self.reported: dict[str, str] = {}
        self.runs_of_request: dict[str, str] = {}
        self.acked_work: set[int] = set()
        self.cancelled: set[str] = set()
        self.claimants: dict[str, set[str]] = {}
        """The processes that claimed each conversation in a row, without another commit in between."""
        self.given_up: set[str] = set()
        self.purged: set[str] = set()
        self.recorded: set[str] = set()
        self.last: dict[str, dict[str, int]] = {}
        """By conversation: the position of the last message of each kind that was recorded, or begun."""

    # -- commits -------------------------------------------------------------------------------------------

    def commit(self, before: Conversation, commit: Commit, after: Conversation) -> None:
        numbers = [event.seq for event in commit.events]
        assert numbers == list(range(before.last_seq + 1, before.last_seq + 1 + len(numbers))), numbers
        self._ownership(before, commit, after)
        for event in commit.events:
            self._event(event, after.conversation_id)
        self._claims(commit, after)
        self._history(after)
        self._rests(after)

    def _ownership(self, before: Conversation, commit: Commit, after: Conversation) -> None:
        assert commit.owner_epoch == before.owner_epoch + commit.claim, "a claim raises the epoch by one"
        if commit.owner is not None:
            assert commit.owner.owner_epoch == commit.owner_epoch
            assert commit.owner.work_seq not in self.acked_work, "claimed under a message that was acked"
        if not commit.claim:
            assert commit.owner in (before.owner, None), "only a claim changes the owner"

    def _claims(self, commit: Commit, after: Conversation) -> None:
        before = set[str]() if commit.events else self.claimants.get(after.conversation_id, set())
        ends = any(isinstance(event.data, RunFinished) for event in commit.events)
        claimant = commit.owner if commit.claim and not ends else None
        claimants = set[str]() if claimant is None else {*before, claimant.agent}
        self.claimants[after.conversation_id] = claimants
        if len(claimants) >= CLAIMS_IN_A_ROW and after.run is not None:
            self.given_up.add(after.run.run_id)

    def _finished(self, run_id: str, finished: RunFinished) -> None:
        if run_id in self.cancelled:
            assert finished.status == "cancelled", f"{run_id} was cancelled and ends as {finished.status}"
        if run_id in self.given_up:
            assert finished.status in ("failed", "cancelled"), f"{run_id} was given up and ends as {finished}"
        self.ended[run_id] = finished

    def _event(self, event: Event, conversation_id: str) -> None:
        if event.imported and not isinstance(event.data, RunStarted | RunFinished):
            return  # A file states it: no process executed or decided anything.
        match event.data:
            case RunStarted(settings=settings) | RunQueued(settings=settings):
                if settings.tools.on_reject == "abort":
                    self.aborted_by_rejection.add(event.run_id)
                again = conversation_id in self.purged
                assert again or event.run_id not in self.ended, f"{event.run_id} begins after its end"
                self._in_order(event, conversation_id, event.data.message_id)
            case MessageCompleted(role="user", message_id=message_id):
                self._in_order(event, conversation_id, message_id)
            case RunFinished() as finished:
                again = conversation_id in self.purged
                assert again or event.run_id not in self.ended, f"{event.run_id} ends twice"
                self._finished(event.run_id or "", finished)
            case CancelRequested():
                self.cancelled.add(event.run_id or "")
                if event.data.reason is None:
                    self._in_order(event, conversation_id, f"cancel {event.run_id}")
            case ToolCallRequested(call=call):
                assert call.id not in self.calls
                self.calls[call.id] = call
                self.replies.setdefault((event.run_id, event.iteration), []).append(call.id)
            case ApprovalRequested() as request:
                assert request.approval_id not in self.requested
                self.requested[request.approval_id] = request
                self.calls_with_request |= {item.tool_call_id: request.approval_id for item in request.items}
            case ApprovalResolved() as resolved:
                self._resolved(resolved)
            case ToolCallCompleted(result=result):
                assert result.tool_call_id in self.calls
                assert result.tool_call_id not in self.results, f"{result.tool_call_id} has two results"
                self.results[result.tool_call_id] = result
            case _:
                pass

    def _in_order(self, event: Event, conversation_id: str, source: str) -> None:
        """Check that nothing that was stored later, and must follow, is recorded already, or begun."""
        position, kind = self.world.broker.positions.get(source, (0, ""))
        if not position or conversation_id in self.purged:
            return
        last = self.last.setdefault(conversation_id, {})
        if isinstance(event.data, RunStarted):
            self._check_follows(last, position, "begun", ("begun",))
        if source not in self.recorded:
            self.recorded.add(source)
            self._check_follows(last, position, kind, AFTER[kind])

    def _check_follows(self, last: dict[str, int], position: int, kind: str, others: Iterable[str]) -> None:
        for other in others:
            assert position > last.get(other, 0), f"{kind} of {position} after {other} of {last[other]}"
        last[kind] = position

    def _resolved(self, resolved: ApprovalResolved) -> None:
        assert resolved.approval_id not in self.resolved, f"{resolved.approval_id} is decided twice"
        stored = self.world.broker.replies[resolved.approval_id]
        assert (stored.outcome, stored.decisions) == (resolved.outcome, resolved.decisions), (
            "not what is stored"
        )
        request = self.world.broker.requests.get(resolved.approval_id)
        reason = problem(stored, request, self.world.key)
        assert reason is None, f"{resolved.approval_id}: {reason}"
        self.resolved[resolved.approval_id] = resolved
        if resolved.outcome in DECIDED:
            for decision in resolved.decisions:
                if decision.decision == "approve":
                    call = self.calls[decision.tool_call_id]
                    edited = call.model_copy(update={"arguments": decision.arguments or call.arguments})
                    self.approved[call.id] = edited.digest

    def _history(self, state: Conversation) -> None:
        missing = calls_without_result(state.history)
        still_open = [call.call.id for call in state.run.open_calls] if state.run else []
        assert missing == still_open, f"the history lacks {missing}, open are {still_open}"

    def _rests(self, state: Conversation) -> None:
        """Check that a run without an owner waits for a user, or has a decision, and can continue."""
        step = next_step(state, self.world.now)
        if state.owner is not None:
            assert not isinstance(step, Idle | Park), f"the run has an owner, and its next step is {step}"
        elif state.run is not None and not state.run.imported:
            assert state.run.cancel is None, "a cancelled run has no owner"
            assert state.run.approval is not None, "an open run has neither an owner nor an approval request"

    # -- effects, slots and acks ---------------------------------------------------------------------------

    def start_stored(self, attempt: str, runner: str) -> None:
        assert attempt not in self.starts, f"{attempt} is started by {self.starts[attempt]} and {runner}"
        self.starts[attempt] = runner

    def effect(self, request: CallRequest) -> None:
        """Record that a call is being executed."""
        call = request.call
        self.effects[call.id] = self.effects.get(call.id, 0) + 1
        assert call.idempotent or self.effects[call.id] == 1, f"{call.id} is executed again"
        if call.id in self.calls_with_request:
            assert self.approved.get(call.id) == call.digest, f"{call.id} runs with unapproved arguments"
        else:
            assert self.calls[call.id].digest == call.digest, f"{call.id} differs from the model's call"
        self._in_turn(request)
        result = self.results.get(call.id)
        kind = None if result is None else result.error_kind
        assert call.idempotent or result is None or kind == "unknown_outcome", (
            f"{call.id} runs after {result}"
        )

    def _in_turn(self, request: CallRequest) -> None:
        """Check that each earlier call of the reply that needs approval was decided, and ended no run."""
        reply = next(calls for calls in self.replies.values() if request.call.id in calls)
        for earlier in reply[: reply.index(request.call.id)]:
            result = self.results.get(earlier)
            unreadable = result is not None and result.error_kind == "invalid_arguments"
            if earlier not in self.calls_with_request or earlier in self.approved or unreadable:
                continue
            resolved = self.resolved.get(self.calls_with_request[earlier])
            decided = resolved is not None and resolved.outcome in DECIDED
            assert decided and request.run_id not in self.aborted_by_rejection, (
                f"{request.call.id} runs, and {earlier} before it was not approved"
            )

    def forget(self, attempts: tuple[str, ...], processes: Iterable[Process]) -> None:
        """Check that no process still holds a request whose slots are deleted: it could start the call
        again."""
        for process in processes:
            for task in process.tasks:
                stands_before_start = task.op is not None and task.op.label in ("start", "queued")
                assert not (task.attempt in attempts and stands_before_start), (
                    f"the slots of {task.attempt} are deleted while {process.id} may still start it"
                )

    def ack(self, message: Message) -> None:
        """Check that no open run depends on an acked work message."""
        self.acked_work.add(message.seq)
        state = self.world.broker.fold(message.body.conversation_id)
        owner = state.owner
        assert owner is None or owner.work_seq != message.seq, f"acked under the claim of {owner}"

    def report_decision(self, approval_id: str, outcome: str) -> None:
        """Record the outcome of an approval that a client received."""
        assert self.reported.setdefault(approval_id, outcome) == outcome, f"{approval_id}: two winners"

    def report_run(self, request_id: str, run_id: str) -> None:
        """Record the run of a request that a client received."""
        assert self.runs_of_request.setdefault(request_id, run_id) == run_id, f"{request_id}: two runs"
        self.accepted.add(run_id)

    # -- at rest -------------------------------------------------------------------------------------------

    def check_at_rest(self) -> None:
        broker = self.world.broker
        assert self.accepted <= set(self.ended), f"accepted without an end: {self.accepted - set(self.ended)}"
        for name, queue in broker.queues.items():
            assert not queue.open, f"{name}: {[m.body for m in queue.open]} are never acked"
        for state in broker.folds.values():
            assert state.run is None and not state.queue and state.owner is None
            assert not calls_without_result(state.history)
        assert set(self.calls) == set(self.results), "calls without a result"
        for result in self.results.values():
            self._result(result)
        assert set(self.requested) == set(self.resolved), "approval requests left open"
        for approval_id, outcome in self.reported.items():
            assert self.resolved[approval_id].outcome == outcome, f"{approval_id}: reported {outcome}"

    def _result(self, result: ToolResult) -> None:
        call = self.calls[result.tool_call_id]
        executed = self.effects.get(call.id, 0) > 0
        kind = result.error_kind
        if kind is None or result.runner is not None:
            assert executed, f"{call.id} has a result and was not executed"
        elif not call.idempotent and kind in NEVER_STARTED | MAY_HAVE_STARTED - {"unknown_outcome"}:
            assert not executed, f"{call.id} was executed, and its result says {kind}"
        elif kind == "unknown_outcome":
            assert any(attempt.rpartition("-")[0] == call.id for attempt in self.starts), (
                f"{call.id} was never started"
            )
