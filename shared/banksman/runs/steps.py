"""What comes next: a pure function of the state, so that any agent that folds the log goes on the same way.

next_step(state) ─┬─ Idle          nothing is open
                  ├─ Record        facts that follow from the log alone; they join the commit that caused them
                  ├─ Ask           the model
                  ├─ Settle        calls that need nobody, or that must be wound down
                  ├─ Withdraw      close the open question before the run may end
                  └─ Park          wait for a person
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import (
    EventBody,
    IterationStarted,
    Outcome,
    RunError,
    RunFinished,
    RunStarted,
    ToolCallCompleted,
)
from banksman.contracts.tools import ErrorKind, ToolResult, failed
from banksman.runs.rendering import answer_text
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation, OpenCall, Run
from banksman.runs.tracked import fitting, fitting_text

MAX_MALFORMED = 3
"""Unreadable replies in a row that end a run."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A run that must end though the model has not answered."""

    status: Outcome
    code: ErrorCode
    message: str
    call_kind: ErrorKind
    """What its open calls get as their result."""


def cancelled(reason: str | None) -> Ending:
    """The ending of a run that somebody cancelled."""
    return Ending("cancelled", ErrorCode.CANCELLED, reason or "The run was cancelled.", "cancelled")


CANCELLED = cancelled(None)

DELETED = Ending(
    "cancelled",
    ErrorCode.CONVERSATION_DELETED,
    "The run ended because its conversation was deleted.",
    "cancelled",
)


@dataclass(frozen=True, slots=True)
class Idle:
    """No run is open."""


@dataclass(frozen=True, slots=True)
class Record:
    """Events that follow from the log alone."""

    run_id: str
    bodies: tuple[EventBody, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """The model is to be asked."""

    run: Run


@dataclass(frozen=True, slots=True)
class Settle:
    """These calls are to get their results; with `ending` by winding them down."""

    calls: tuple[OpenCall, ...]
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The open question is to be closed as `cancelled` in its slot."""

    approval_id: str


@dataclass(frozen=True, slots=True)
class Park:
    """Only a person can say how it goes on."""


Step = Idle | Record | Ask | Settle | Withdraw | Park


def next_step(state: Conversation, now: datetime) -> Step:
    """What the owner of the open run does next."""
    run = state.run
    if run is None:
        return Idle()
    ending = ending_of(state, run, now)
    if ending is not None:
        return _wind_down(state, run, ending)
    unrunnable = tuple(_refusal(call) for call in run.open_calls if _cannot_run(call))
    if unrunnable:
        return Record(run.run_id, unrunnable)
    runnable = tuple(call for call in run.open_calls if call.gate in ("free", "approved"))
    if runnable:
        return Settle(runnable)
    if run.waits:
        return Park()
    return _between_iterations(state, run)


def deadline_of(run: Run) -> datetime:
    """When the run's time is over; it moves while the run is parked."""
    return run.started_at + timedelta(seconds=run.settings.limits.run_timeout_s + run.waited_s)


def ending_of(state: Conversation, run: Run, now: datetime) -> Ending | None:
    """Why the run must end now, the strongest reason first; None when it may go on."""
    if state.deleted:
        return DELETED
    if run.cancel is not None:
        return cancelled(run.cancel.reason)
    if state.claims_in_row >= CRASH_LOOP_CLAIMS:
        text = f"The run was given up: {CRASH_LOOP_CLAIMS} agents in a row stopped while driving it."
        return Ending("failed", ErrorCode.CRASH_LOOP, text, "not_executed")
    if run.settings.tools.on_reject == "abort" and any(call.gate == "rejected" for call in run.calls):
        return Ending("rejected", ErrorCode.REJECTED, _rejection_text(run), "not_executed")
    if _expired(run):
        text = "The run ended because nobody answered its approval request in time."
        return Ending("rejected", ErrorCode.APPROVAL_EXPIRED, text, "not_executed")
    if run.parked_at is None and now >= deadline_of(run):
        limit = f"{run.settings.limits.run_timeout_s:g} s"
        return Ending(
            "timed_out", ErrorCode.RUN_TIMEOUT, f"The run reached its time limit of {limit}.", "timeout"
        )
    return _limit_reached(run)


def _limit_reached(run: Run) -> Ending | None:
    if run.open_calls or run.final is not None:
        return None
    limits, used = run.settings.limits, run.usage
    if run.malformed >= MAX_MALFORMED:
        text = f"The model wrote {MAX_MALFORMED} tool calls in a row that could not be read."
        return Ending("failed", ErrorCode.MALFORMED_CALLS, text, "invalid_arguments")
    tokens = used.input_tokens + used.output_tokens
    if limits.max_tokens_per_run is not None and tokens >= limits.max_tokens_per_run:
        text = f"The run used {tokens} tokens; its limit is {limits.max_tokens_per_run}."
        return Ending("failed", ErrorCode.TOKEN_LIMIT, text, "not_executed")
    if limits.max_cost_usd is not None and (used.cost_usd or 0.0) >= limits.max_cost_usd:
        text = f"The run cost {used.cost_usd:.4f} USD; its limit is {limits.max_cost_usd:g}."
        return Ending("failed", ErrorCode.COST_LIMIT, text, "not_executed")
    return None


def _expired(run: Run) -> bool:
    resolved = run.approval.resolved if run.approval else None
    return resolved is not None and resolved.outcome == "expired"


def _rejection_text(run: Run) -> str:
    rejected = [call for call in run.calls if call.gate == "rejected"]
    names = ", ".join(dict.fromkeys(call.call.name for call in rejected))
    reasons = "; ".join(dict.fromkeys(call.reason for call in rejected if call.reason))
    said = f" Reason: {reasons}" if reasons else ""
    return f"The run was stopped because the call of {names} was rejected.{said}"


def _wind_down(state: Conversation, run: Run, ending: Ending) -> Step:
    if run.waits and run.approval is not None:
        return Withdraw(run.approval.request.approval_id)
    idle = tuple(call for call in run.open_calls if _never_dispatched(state, call))
    if idle:
        return Record(run.run_id, tuple(_unexecuted(call, ending) for call in idle))
    if run.open_calls:
        return Settle(run.open_calls, ending)
    return Record(run.run_id, (finished(run, ending.status, ending.message, ending),))


def _never_dispatched(state: Conversation, call: OpenCall) -> bool:
    """Nothing is in flight for a call that had to ask, nor while nobody owns the run."""
    return (
        state.owner is None
        or call.gate in ("waiting", "rejected", "withdrawn")
        or call.arguments_error is not None
    )


def _unexecuted(call: OpenCall, ending: Ending) -> ToolCallCompleted:
    if call.gate == "rejected" or call.arguments_error is not None:
        return _refusal(call)
    return ToolCallCompleted(result=failed(call.call.id, ending.call_kind, ending.message))


def _cannot_run(call: OpenCall) -> bool:
    return call.gate in ("rejected", "withdrawn") or call.arguments_error is not None


def _refusal(call: OpenCall) -> ToolCallCompleted:
    if call.arguments_error is not None:
        text = f"The arguments of {call.call.name} could not be read: {call.arguments_error}"
        return ToolCallCompleted(result=failed(call.call.id, "invalid_arguments", text))
    if call.gate == "rejected":
        reason = f" Reason: {call.reason}" if call.reason else ""
        return ToolCallCompleted(
            result=failed(call.call.id, "rejected", f"The user rejected this call.{reason}")
        )
    text = "Not executed: the user went on with another message."
    return ToolCallCompleted(result=failed(call.call.id, "not_executed", text))


def _between_iterations(state: Conversation, run: Run) -> Step:
    if run.asking:
        return Ask(run)
    most = run.settings.tools.max_iterations
    answer = run.final if run.final is not None else _terminating_answer(run)
    if answer is not None and (not run.steering or run.iteration >= most):
        return Record(run.run_id, (finished(run, "completed", answer, None),))
    if run.iteration >= most:
        text = f"I reached the maximum number of tool calls ({most}) before I could finish."
        ending = Ending("max_iterations", ErrorCode.MAX_ITERATIONS, text, "not_executed")
        return Record(run.run_id, (finished(run, "max_iterations", text, ending),))
    return Record(run.run_id, (IterationStarted(n=run.iteration + 1, max=most),))


def _terminating_answer(run: Run) -> str | None:
    if run.settings.tools.final_summary:
        return None
    ended: list[ToolResult] = [c.result for c in run.calls if c.call.terminate and c.result is not None]
    names = {c.call.id: c.call.name for c in run.calls}
    return answer_text(names[ended[-1].tool_call_id], ended[-1]) if ended else None


def finished(run: Run, status: Outcome, content: str, ending: Ending | None) -> RunFinished:
    """The terminal event of a run."""
    return RunFinished(
        status=status,
        content=fitting_text(content),
        service=run.settings.service,
        model=run.answered_by or run.settings.model,
        iterations=run.iteration,
        tool_calls=fitting(run.tracked),
        max_iterations_reached=status == "max_iterations",
        usage=run.usage,
        error=None if ending is None else RunError(code=ending.code, message=ending.message),
    )


def never_started(settings: RunSettings, ending: Ending) -> RunFinished:
    """The terminal event of a run that never had an owner."""
    return RunFinished(
        status=ending.status,
        content=ending.message,
        service=settings.service,
        model=settings.model,
        iterations=0,
        error=RunError(code=ending.code, message=ending.message),
    )


def next_in_queue(state: Conversation) -> tuple[str, RunStarted] | None:
    """The run that starts when the open one ends: its id and its first event."""
    if state.run is not None or not state.queue:
        return None
    first = state.queue[0]
    started = RunStarted(message_id=first.message_id, message=first.message, settings=first.settings)
    return first.run_id, started
