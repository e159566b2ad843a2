"""The steps of a run, from the events of its log. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from banksman.contracts import events
from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved, InputRequested, InputResolved
from banksman.contracts.messages import Usage, text_of
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonValue, Stored, Timestamp

SUMMARY_CHARS = 200
QUEUE_STEP = "queue"
MODEL_STEP = "model"
"""The id of a model request without a reply, which is open or has failed."""

StepKind = Literal["queue", "model", "compaction", "notice", "tool", "approval", "input"]
"""
queue       the run waits for another run of its conversation
model       a model request
compaction  a model request for a summary of the history
notice      what an agent changed in a model request or a reply; its name is the kind of the change
tool        a tool call, from its request to its result
approval    an approval request, from its publication to its decision
input       a workflow waits for a value
"""


class RunStep(Stored):
    """One step of a run. Tool calls overlap with each other and with their approval request."""

    step_id: str
    """The id of the message, call or request; unique in the run."""
    kind: StepKind
    iteration: int
    """Counted from 1; 0 before the first."""
    name: str
    """The model, the tool, or the tools of an approval request."""
    status: str
    """`running`, `waiting`, or how it ended: a finish reason, `done`, an error kind, an outcome."""
    summary: str
    """One line of its text or arguments, at most 200 characters."""
    began_at: Timestamp
    ended_at: Timestamp | None = None
    """None while it is open."""
    duration_ms: int | None = None
    """Milliseconds; for a tool call, those of its execution, without the wait for a decision."""
    usage: Usage | None = None
    """None for steps without a model."""
    by: str = ""
    """Who decided or provided a value."""


def steps_of(history: Iterable[events.Event], run_id: str) -> list[RunStep]:
    fold = _Fold()
    for event in history:
        if event.run_id == run_id:
            fold.apply(event)
    return fold.result()


class _Fold:
    def __init__(self) -> None:
        self._steps: dict[str, RunStep] = {}
        self._iteration = 0
        self._model = ""
        self._requested_at: datetime | None = None
        """Start of the open model request; None without one."""

    def result(self) -> list[RunStep]:
        if self._requested_at is not None:
            self._add(MODEL_STEP, "model", self._model, "running", "", self._requested_at)
        return sorted(self._steps.values(), key=lambda step: step.began_at)

    def apply(self, event: events.Event) -> None:
        at = event.ts
        match event.data:
            case events.RunQueued():
                self._add(QUEUE_STEP, "queue", "", "waiting", "", at)
            case events.RunStarted() as data:
                self._model = data.settings.model
                self._end(QUEUE_STEP, at, "done")
            case events.IterationStarted(n=n):
                self._iteration, self._requested_at = n, at
            case events.MessageCompleted() as data if data.role == "assistant":
                self._reply(data, at)
            case events.ProtocolRetry() as data:
                usage, text = data.usage, _line(data.reply)
                self._answered(data.message_id, data.model, "malformed", text, usage, at)
                self._requested_at = at
            case events.HistoryCompacted() as data:
                self._compaction(data, at)
            case events.ModelNotice() as data:
                self._add(f"notice-{event.seq}", "notice", data.kind, "running", _line(data.text), at)
                self._end(f"notice-{event.seq}", at, "done")
            case events.RunFinished() as data:
                self._finish(data, at)
            case _:
                self._apply_to_call(event)

    def _apply_to_call(self, event: events.Event) -> None:
        at = event.ts
        match event.data:
            case events.ToolCallRequested(call=call):
                self._add(call.id, "tool", call.name, "waiting", _call_line(call), at)
            case events.ToolCallCompleted() as data:
                result = data.result
                self._end(
                    result.tool_call_id, at, result.error_kind or "done", duration_ms=result.duration_ms
                )
            case ApprovalRequested() as data:
                names = ", ".join(dict.fromkeys(item.name for item in data.items))
                self._add(data.approval_id, "approval", names, "waiting", "", at)
            case ApprovalResolved() as data:
                self._end(data.approval_id, at, data.outcome, by=data.by)
            case InputRequested() as data:
                # A workflow's request for a value is also recorded as a call, of no tool.
                self._steps.pop(data.tool_call_id or "", None)
                self._add(data.request_id, "input", "", "waiting", _line(data.message), at)
            case InputResolved() as data:
                self._end(data.request_id, at, data.outcome, by=data.by)
            case _:
                pass

    def _reply(self, data: events.MessageCompleted, at: datetime) -> None:
        status = "partial" if data.partial else data.finish_reason or "done"
        text = _line(text_of(data.content or ""))
        self._answered(data.message_id, data.model, status, text, data.usage, at)

    def _compaction(self, data: events.HistoryCompacted, at: datetime) -> None:
        began = self._requested_at or at
        self._add(data.message_id, "compaction", data.model, "waiting", _line(data.summary), began)
        self._end(data.message_id, at, data.how, usage=data.usage)
        self._requested_at = at

    def _answered(self, step_id: str, model: str, status: str, text: str, usage: Usage, at: datetime) -> None:
        self._add(step_id, "model", model or self._model, "running", text, self._requested_at or at)
        self._end(step_id, at, status, usage=usage)
        self._requested_at = None

    def _finish(self, data: events.RunFinished, at: datetime) -> None:
        if self._requested_at is not None:
            text = _line(data.error.message if data.error else "")
            self._add(MODEL_STEP, "model", data.model, "running", text, self._requested_at)
            self._requested_at = None
        for step in tuple(self._steps.values()):
            if step.ended_at is None:
                self._end(step.step_id, at, data.status)

    def _add(self, step_id: str, kind: StepKind, name: str, status: str, text: str, at: datetime) -> None:
        self._steps[step_id] = RunStep(
            step_id=step_id,
            kind=kind,
            iteration=self._iteration,
            name=name,
            status=status,
            summary=text,
            began_at=at,
        )

    def _end(
        self,
        step_id: str,
        at: datetime,
        status: str,
        *,
        duration_ms: int | None = None,
        usage: Usage | None = None,
        by: str = "",
    ) -> None:
        step = self._steps.get(step_id)
        if step is None or step.ended_at is not None:
            return
        took = round((at - step.began_at).total_seconds() * 1000)
        changes = {
            "ended_at": at,
            "status": status,
            "duration_ms": took if duration_ms is None else duration_ms,
            "usage": usage,
            "by": by,
        }
        self._steps[step_id] = step.model_copy(update=changes)


def _call_line(call: ToolCall) -> str:
    """Return the argument that describes a call best, such as its command."""
    found: JsonValue = next(
        (call.arguments[name] for name in ("command", "path", "url") if name in call.arguments), None
    )
    return _line(found if isinstance(found, str) else json.dumps(call.arguments, ensure_ascii=False))


def _line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"
