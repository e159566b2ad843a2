"""The next step of a run. Pure: every agent that folds the same log takes the same next step.

next_step(state) ─┬─ Idle           no run is open
                  ├─ RecordEvents   events that follow from the log alone; they join the commit before them
                  ├─ RequestModel   request the model's next reply
                  ├─ ExecuteCalls   execute the calls that may run, or end them when the run must end
                  ├─ CloseApproval  close the open approval request before the run may end
                  └─ Park           wait for a decision
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import EventBody, IterationStarted, RunStarted, ToolCallCompleted
from banksman.contracts.tools import ErrorKind, ToolResult, failed
from banksman.contracts.wire import first_fitting
from banksman.runs.outcome import Ending, answer_text, finished
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation, OpenCall, Run

MAX_MALFORMED = 3
"""Consecutive corrections of unreadable replies, and consecutive replies with unreadable arguments, in a run.
A correction is sent before the run ends; unreadable arguments end it with their results."""


def cancelled(reason: str | None) -> Ending:
    return Ending("cancelled", ErrorCode.CANCELLED, reason or "The run was cancelled.", "cancelled")


CANCELLED = cancelled(None)

DELETED = Ending(
    "cancelled",
    ErrorCode.CONVERSATION_DELETED,
    "The run ended because its conversation was deleted.",
    "cancelled",
)

MAX_REASON_BYTES = 240
"""Maximum bytes of JSON of the reason for which a call was not executed, in its result."""
REASON_CHARS = (200, 100, 50, 25)
"""Characters of a longer reason: the most that fit are used. Scripts differ in their bytes per character."""

UNREAD: frozenset[ErrorKind | None] = frozenset({"invalid_arguments", "unknown_tool"})
"""Error kinds of calls that were never passed to a tool, because of a mistake of the model."""


@dataclass(frozen=True, slots=True)
class Idle:
    """No run is open."""


@dataclass(frozen=True, slots=True)
class RecordEvents:
    run_id: str
    bodies: tuple[EventBody, ...]


@dataclass(frozen=True, slots=True)
class RequestModel:
    run: Run


@dataclass(frozen=True, slots=True)
class ExecuteCalls:
    calls: tuple[OpenCall, ...]
    ending: Ending | None = None
    """Why the run must end, and its calls with it; None if the calls are to be executed."""


@dataclass(frozen=True, slots=True)
class CloseApproval:
    """Close an open request of the run as `cancelled`, unless its slot holds a user's reply."""

    approval_id: str


@dataclass(frozen=True, slots=True)
class Park:
    """The run waits for a decision and has no owner until then."""


Step = Idle | RecordEvents | RequestModel | ExecuteCalls | CloseApproval | Park


def next_step(state: Conversation, now: datetime) -> Step:
    run = state.run
    if run is None or (run.imported and run.cancel is None and not state.deleted):
        return Idle()
    ending = ending_of(state, run, now)
    if ending is not None:
        return _wind_down(state, run, ending)
    unrunnable = tuple(_refusal(call) for call in run.open_calls if _cannot_run(call))
    if unrunnable:
        return RecordEvents(run.run_id, unrunnable)
    # What follows a call that waits for a decision waits with it: after a rejection, none of it has run.
    due = takewhile(lambda call: call.gate != "waiting", run.open_calls)
    runnable = tuple(call for call in due if call.gate in ("free", "approved"))
    if runnable:
        return ExecuteCalls(runnable)
    if run.waits:
        return Park()
    return _between_iterations(state, run)


def deadline_of(run: Run) -> datetime:
    """Return when the run times out. The time it was parked does not count."""
    return run.started_at + timedelta(seconds=run.settings.limits.run_timeout_s + run.waited_s)


def ending_of(state: Conversation, run: Run, now: datetime) -> Ending | None:
    """Return why the run must end now, the strongest reason first; None when it may continue."""
    if state.deleted:
        return DELETED
    if run.cancel is not None:
        return cancelled(run.cancel.reason)
    if state.claims_in_row >= CRASH_LOOP_CLAIMS:
        text = f"The run was given up: {CRASH_LOOP_CLAIMS} agents in a row stopped while driving it."
        return Ending("failed", ErrorCode.CRASH_LOOP, text, "not_executed")
    if _rejection_ends(run):
        return Ending("rejected", ErrorCode.REJECTED, _rejection_text(run), "not_executed")
    if _expired(run):
        text = "The run ended because its approval request expired without a decision."
        return Ending("rejected", ErrorCode.APPROVAL_EXPIRED, text, "not_executed")
    # A parked run has no time limit. An owned run has one, even while it waits for a decision beside a call
    # that hangs: otherwise the call would occupy its owner for as long as the decision takes.
    if run.parked_at is None and now >= deadline_of(run):
        return timed_out(run)
    return _limit_reached(run)


def timed_out(run: Run) -> Ending:
    text = f"The run reached its time limit of {run.settings.limits.run_timeout_s:g} s."
    return Ending("timed_out", ErrorCode.RUN_TIMEOUT, text, "timeout")


def malformed_ending(run: Run, number: int) -> Ending:
    wrong = "tool calls in a row that could not be read"
    if run.settings.options.response_schema is not None:
        wrong = "replies in a row that could not be read or do not fit the response schema"
    text = f"The model wrote {number} {wrong}."
    return Ending("failed", ErrorCode.MALFORMED_CALLS, text, "invalid_arguments")


def _limit_reached(run: Run) -> Ending | None:
    if run.open_calls or run.final is not None:
        return None
    limits, used = run.settings.limits, run.usage
    if run.malformed >= MAX_MALFORMED and not run.asking:
        return malformed_ending(run, MAX_MALFORMED)
    if limits.max_calls_per_run is not None and len(run.tracked) >= limits.max_calls_per_run:
        text = f"The run made {len(run.tracked)} tool calls; its limit is {limits.max_calls_per_run}."
        return Ending("failed", ErrorCode.CALL_LIMIT, text, "not_executed")
    tokens = used.input_tokens + used.output_tokens
    if limits.max_tokens_per_run is not None and tokens >= limits.max_tokens_per_run:
        text = f"The run used {tokens} tokens; its limit is {limits.max_tokens_per_run}."
        return Ending("failed", ErrorCode.TOKEN_LIMIT, text, "not_executed")
    if limits.max_cost_usd is not None and (used.cost_usd or 0.0) >= limits.max_cost_usd:
        text = f"The run cost {used.cost_usd:.4f} USD; its limit is {limits.max_cost_usd:g}."
        return Ending("failed", ErrorCode.COST_LIMIT, text, "not_executed")
    return None


def _rejection_ends(run: Run) -> bool:
    resolved = run.approval.resolved if run.approval else None
    if resolved is None:
        return False
    rejected = {call.call.id for call in run.calls if call.gate == "rejected"}
    decisions = (one for one in resolved.decisions if one.tool_call_id in rejected)
    return any((one.on_reject or run.settings.tools.on_reject) == "abort" for one in decisions)


def _expired(run: Run) -> bool:
    resolved = run.approval.resolved if run.approval else None
    return resolved is not None and resolved.outcome == "expired"


def _rejection_text(run: Run) -> str:
    rejected = [call for call in run.calls if call.gate == "rejected"]
    names = ", ".join(dict.fromkeys(call.call.name for call in rejected))
    reasons = "; ".join(dict.fromkeys(call.reason for call in rejected if call.reason))
    reason = f" Reason: {reasons}" if reasons else ""
    return f"The run was stopped because of a rejected call: {names}.{reason}"


def _wind_down(state: Conversation, run: Run, ending: Ending) -> Step:
    if run.undecided and run.approval is not None:
        return CloseApproval(run.approval.request.approval_id)
    if run.open_inputs:
        return CloseApproval(run.open_inputs[0].request_id)
    idle = tuple(call for call in run.open_calls if _never_dispatched(state, call))
    if idle:
        return RecordEvents(run.run_id, tuple(_unexecuted(call, ending) for call in idle))
    if run.open_calls:
        return ExecuteCalls(run.open_calls, ending)
    return RecordEvents(run.run_id, (finished(run, ending.status, ending.message, ending),))


def _never_dispatched(state: Conversation, call: OpenCall) -> bool:
    # No runner has a request for a call that awaits a decision, or for any call of a run without an owner: a
    # run is parked only when every call before the first one that waits has its result.
    return (
        state.owner is None
        or call.gate in ("waiting", "rejected", "withdrawn", "awaiting")
        or call.arguments_error is not None
    )


def _unexecuted(call: OpenCall, ending: Ending) -> ToolCallCompleted:
    if call.gate == "rejected" or call.arguments_error is not None:
        return _refusal(call)
    return ToolCallCompleted(result=failed(call.call.id, ending.call_kind, _short(ending.message)))


def _short(reason: str) -> str:
    """Return a reason in the length for the result of a call: one commit ends up to a thousand calls."""
    cut = (f"{reason[:chars]}…" for chars in REASON_CHARS if len(reason) > chars)
    return first_fitting((reason, *cut), MAX_REASON_BYTES)


def _cannot_run(call: OpenCall) -> bool:
    return call.gate in ("rejected", "withdrawn") or call.arguments_error is not None


def _refusal(call: OpenCall) -> ToolCallCompleted:
    if call.over_limit:
        return ToolCallCompleted(
            result=failed(call.call.id, "not_executed", f"Not executed: {call.arguments_error}")
        )
    if call.arguments_error is not None:
        text = f"The arguments of {call.call.name} could not be read: {call.arguments_error}"
        return ToolCallCompleted(result=failed(call.call.id, "invalid_arguments", text))
    if call.gate == "rejected":
        reason = f" Reason: {call.reason}" if call.reason else ""
        return ToolCallCompleted(
            result=failed(call.call.id, "rejected", f"The user rejected this call.{reason}")
        )
    text = "Not executed: the user sent another message instead."
    return ToolCallCompleted(result=failed(call.call.id, "not_executed", text))


def _between_iterations(state: Conversation, run: Run) -> Step:
    if run.asking:
        return RequestModel(run)
    most = run.settings.tools.max_iterations
    answer = run.final if run.final is not None else _terminating_answer(run)
    if answer is not None and (not run.steering or run.iteration >= most):
        return RecordEvents(run.run_id, (finished(run, "completed", answer, None),))
    if run.iteration >= most:
        text = f"I reached the maximum number of tool calls ({most}) before I could finish."
        ending = Ending("max_iterations", ErrorCode.MAX_ITERATIONS, text, "not_executed")
        return RecordEvents(run.run_id, (finished(run, "max_iterations", text, ending),))
    return RecordEvents(run.run_id, (IterationStarted(n=run.iteration + 1, max=most),))


def _terminating_answer(run: Run) -> str | None:
    if run.settings.tools.final_summary or run.settings.options.response_schema is not None:
        return None
    # A call that never reached its tool does not end the run: the model may correct it.
    ended: list[ToolResult] = [
        c.result
        for c in run.calls
        if c.call.terminate and c.result is not None and c.result.error_kind not in UNREAD
    ]
    names = {c.call.id: c.call.name for c in run.calls}
    return answer_text(names[ended[-1].tool_call_id], ended[-1]) if ended else None


def next_in_queue(state: Conversation) -> tuple[str, tuple[RunStarted, ...]] | None:
    if state.run is not None or not state.queue:
        return None
    first = state.queue[0]
    started = RunStarted(
        message_id=first.message_id,
        message=first.message,
        settings=first.settings,
        provenance=first.provenance,
    )
    return first.run_id, (started,)
