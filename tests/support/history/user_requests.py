"""Checks of the users' requests: messages, cancels, remembered decisions, workflows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.support.history.folded import ApprovalRecord, Call, Folded, Run
from tests.support.history.records import Seen, Send, Start

NEW = frozenset({"iteration.started", "tool_call.requested", "approval.requested"})
"""Events by which a run begins an action."""


def an_accepted_message_is_in_its_log_once(history: Folded) -> Iterator[str]:
    """A message opens a run or steers an open one, once; a message cancelled in time may be missing."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for log in history.logs.values():
        for event in log.values():
            if place := _place_of_message(event):
                found[event.conversation_id, str(event.data["message_id"])].add(place)
    for send in history.of(Send):
        if send.phase != "ok" or send.message_id is None:
            continue
        places = found.get((send.conversation_id, send.message_id), set[str]())
        run = history.runs.get(send.run_id or "")
        if len(places) > 1:
            yield f"message {send.message_id} is in the log {len(places)} times: {', '.join(sorted(places))}"
        if not places and not (run is not None and _status(run) == "cancelled"):
            yield f"message {send.message_id} was accepted and is in no log"


def a_cancelled_run_begins_no_further_action(history: Folded) -> Iterator[str]:
    """After the cancel in its log a run begins no action, and it ends as cancelled."""
    for run in history.runs.values():
        if run.cancelled is None:
            continue
        for event in run.after_cancel:
            if event.type in NEW:
                yield f"run {run.run_id}: {event.type} {event.seq} follows its cancel"
        if run.ends and _status(run) != "cancelled":
            yield f"run {run.run_id} was cancelled in its log and ended as {_status(run)}"


def a_remembered_decision_prevents_further_requests(history: Folded) -> Iterator[str]:
    """A decision for the rest of a run or conversation prevents further approval requests of its kind."""
    for known in history.approvals.values():
        for decision in known.resolutions:
            if decision.data.get("remember") is None:
                continue
            for other in history.approvals.values():
                if _comes_after(decision, other) and _patterns(history, known) & _patterns(history, other):
                    yield f"approval {other.approval_id} repeats {known.approval_id}, which was remembered"


def invalid_parameters_start_no_workflow(history: Folded) -> Iterator[str]:
    """A workflow starts only with parameters that fit its form."""
    for start in history.of(Start):
        if start.phase == "ok" and not start.fits:
            yield f"workflow run {start.run_id} was started with parameters that do not fit"


def a_workflow_executes_each_step_once(history: Folded) -> Iterator[str]:
    """A workflow run makes each call once, in increasing steps, and a completed run reported all steps."""
    for run_id in history.workflows:
        run = history.runs.get(run_id)
        requested = [call.signature for call in history.calls.values() if call.run_id == run_id]
        if len(set(requested)) < len(requested):
            yield f"workflow run {run_id} requested the same call again"
        steps = _steps(run) if run is not None else []
        if steps != sorted(steps):
            yield f"workflow run {run_id} reported steps out of order: {steps}"
        if run is not None and _status(run) == "completed" and (not steps or steps[-1][0] != steps[-1][1]):
            yield f"workflow run {run_id} completed and reported the steps {steps}"


def a_workflow_leaves_one_link(history: Folded) -> Iterator[str]:
    """A workflow that was started in a conversation is linked there exactly once."""
    links: dict[tuple[str, str], int] = defaultdict(int)
    for log in history.logs.values():
        for event in log.values():
            if event.type == "workflow.linked":
                links[event.conversation_id, str(event.data["workflow_run_id"])] += 1
    for run_id, starts in history.workflows.items():
        where = starts[0].in_conversation
        if where is not None and links[where, run_id] != 1:
            yield f"workflow run {run_id} is linked {links[where, run_id]} times in {where}"


def _status(run: Run) -> object:
    return run.ends[0].data.get("status") if run.ends else None


def _steps(run: Run) -> list[tuple[int, int]]:
    """Return the reported steps of a workflow, each with the total number of steps."""
    reported = [(one.data["step"], one.data["total"]) for one in run.progress]
    return [(step, total) for step, total in reported if isinstance(step, int) and isinstance(total, int)]


def _place_of_message(event: Seen) -> str | None:
    """Return where the log has a user's message: as the start of a run, queued or not, or as an event."""
    match event.type:
        case "run.started" | "run.queued":
            return f"run {event.run_id}"
        case "message.completed" if event.data.get("role") == "user":
            return f"event {event.seq}"
        case _:
            return None


def _comes_after(decision: Seen, approval: ApprovalRecord) -> bool:
    """Return whether an approval was requested after a decision that applies to it."""
    requested = approval.requested
    if (
        requested is None
        or requested.conversation_id != decision.conversation_id
        or requested.seq < decision.seq
    ):
        return False
    return decision.data["remember"] == "conversation" or requested.run_id == decision.run_id


def _patterns(history: Folded, approval: ApprovalRecord) -> set[str]:
    """Return the patterns by which a decision matches calls: the path of a file, else all arguments."""
    return {_pattern(history.calls[call_id]) for call_id in approval.calls if call_id in history.calls}


def _pattern(call: Call) -> str:
    path = call.arguments.get("path") if isinstance(call.arguments, dict) else None
    return call.signature if path is None else f"{call.requested.data.get('name')} {path}"
