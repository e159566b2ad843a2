"""Counts situations, so that a test can verify which of them a schedule reached."""

from __future__ import annotations

from collections import Counter

from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved
from banksman.contracts.events import (
    CancelRequested,
    Commit,
    ConversationUpdated,
    Event,
    MessageCompleted,
    ProtocolRetry,
    RunFinished,
    RunQueued,
    RunStarted,
    ToolCallCompleted,
)
from banksman.runs.state import Conversation
from tests.runs.processes import Task

EXPECTED = (
    "claim: start",
    "claim: takeover",
    "claim: resume",
    "claim: next in the queue, by the owner that ended the run before",
    "claim: next in the queue, by a resume",
    "claim: ends the run at once",
    "claim: takeover that ends the run at once",
    "queued behind another run",
    "queued, cancelled before",
    "parked",
    "approval: approved",
    "approval: rejected",
    "approval: mixed",
    "approval: expired",
    "approval: cancelled",
    "approval: superseded",
    "approval: edited arguments",
    "approval: remembered for the run",
    "approval: remembered for the conversation",
    "approval: forged decision dead-lettered",
    "approval: forged decision read by a gateway",
    "approval request: stored again after a crash",
    "approval request: stored again by redelivery",
    "cancel: before its start",
    "cancel: queued",
    "cancel: parked",
    "cancel: decided, not resumed",
    "cancel: during a model request",
    "cancel: calls run",
    "cancel: calls run during an approval request",
    "steer: nothing open",
    "steer: parked",
    "steer: decided, not resumed",
    "steer: during a model request",
    "steer: calls run",
    "steer: calls run during an approval request",
    "steer: before the final commit",
    "end: completed",
    "end: failed crash_loop",
    "end: failed malformed_calls",
    "end: failed provider_error",
    "end: failed token_limit",
    "end: cancelled cancelled",
    "end: cancelled conversation_deleted",
    "end: timed_out run_timeout",
    "end: rejected rejected",
    "end: rejected approval_expired",
    "end: max_iterations max_iterations",
    "end: by a terminating call",
    "result: success",
    "result: unknown_outcome",
    "result: cancelled by the runner",
    "result: cancelled, never started",
    "result: timeout",
    "result: not_executed",
    "result: rejected",
    "result: rejection returned to the model",
    "result: unavailable",
    "result: invalid_arguments",
    "slots: void stored",
    "slots: void refused, it had started",
    "slots: forgotten",
    "runner: start refused, void",
    "runner: start stored by a disconnected one",
    "runner: start refused to a disconnected one",
    "runner: start stored by one whose lease an agent ended",
    "runner: start refused to one whose lease an agent ended",
    "runner: next attempt",
    "runner: next attempt elsewhere",
    "runner: busy",
    "runner: wrong epoch",
    "runner: done",
    "runner: request repeated during execution",
    "runner: idempotent call executed again",
    "owner: fenced",
    "owner: append met another commit",
    "fault: process crashed",
    "fault: port unavailable",
    "fault: agent paused",
    "fault: deliveries reordered",
    "fault: runner disconnected",
    "fault: lease late",
    "fault: storage full",
    "client: request repeated",
    "client: other body under the same request id",
    "delete: purged",
    "delete: waited for its run",
    "start: found a deleted conversation",
    "retry: model called again",
    "snapshot: while a run is driven",
    "history: compacted",
)


class SituationCounter(Counter[str]):
    """The number of occurrences of each situation, by name."""

    def commit(self, before: Conversation, commit: Commit, after: Conversation, task: Task | None) -> None:
        """Count the situations that a commit shows."""
        if commit.claim:
            self._claim(before, commit, after)
        if before.owner is not None and after.owner is None and after.run is not None:
            self["parked"] += 1
        ended = [event.run_id for event in commit.events if isinstance(event.data, RunFinished)]
        for event in commit.events:
            self._event(before, event)
            if isinstance(event.data, RunStarted) and ended and not commit.claim:
                self["claim: next in the queue, by the owner that ended the run before"] += 1

    def _claim(self, before: Conversation, commit: Commit, after: Conversation) -> None:
        ends = any(isinstance(event.data, RunFinished) for event in commit.events)
        if before.owner is not None:
            self["claim: takeover that ends the run at once" if ends else "claim: takeover"] += 1
        elif before.run is not None:
            self["claim: resume"] += 1
        elif before.queue:
            self["claim: next in the queue, by a resume"] += 1
        else:
            self["claim: start"] += 1
        if ends and after.run is None:
            self["claim: ends the run at once"] += 1
        if before.deleted:
            self["start: found a deleted conversation"] += 1

    def _event(self, before: Conversation, event: Event) -> None:
        match event.data:
            case RunQueued():
                early = event.run_id in before.cancelled_early
                self["queued, cancelled before" if early else "queued behind another run"] += 1
                if before.run is None and not before.queue:
                    self["steer: nothing open"] += 1
            case CancelRequested():
                self[f"cancel: {_where(before, event.run_id)}"] += 1
            case MessageCompleted(role="user"):
                self[f"steer: {_where(before, event.run_id)}"] += 1
            case MessageCompleted() if before.run is not None and before.run.steering:
                self["steer: before the final commit"] += 1
            case ProtocolRetry():
                self["retry: model called again"] += 1
            case ApprovalResolved() as resolved:
                self._resolved(resolved)
            case ToolCallCompleted(result=result):
                own = result.error_kind == "cancelled" and result.runner is not None
                kind = result.error_kind or "success"
                never = "cancelled, never started" if kind == "cancelled" else kind
                self[f"result: {'cancelled by the runner' if own else never}"] += 1
                if kind == "rejected" and before.run and before.run.settings.tools.on_reject == "feedback":
                    self["result: rejection returned to the model"] += 1
            case RunFinished() as finished:
                self._finished(before, event, finished)
            case ApprovalRequested() | ConversationUpdated() | RunStarted():
                pass
            case _:
                pass

    def _resolved(self, resolved: ApprovalResolved) -> None:
        self[f"approval: {resolved.outcome}"] += 1
        if any(decision.arguments is not None for decision in resolved.decisions):
            self["approval: edited arguments"] += 1
        if resolved.remember is not None:
            self[f"approval: remembered for the {resolved.remember}"] += 1

    def _finished(self, before: Conversation, event: Event, finished: RunFinished) -> None:
        code = f" {finished.error.code}" if finished.error else ""
        self[f"end: {finished.status}{code}"] += 1
        if any(queued.run_id == event.run_id for queued in before.queue):
            self["cancel: queued"] += 1
        run = before.run
        if finished.status == "completed" and run and any(call.call.terminate for call in run.calls):
            self["end: by a terminating call"] += 1


def _where(state: Conversation, run_id: str | None) -> str:
    run = state.run
    if run is None or run.run_id != run_id:
        return "before its start"
    if state.owner is None:
        return "parked" if run.waits else "decided, not resumed"
    if run.asking:
        return "during a model request"
    return "calls run during an approval request" if run.waits else "calls run"
