"""A recording as one structure: the logs with their runs, calls, approval requests and effects."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

from pydantic import BaseModel, JsonValue

from tests.support.history.records import Decide, Effect, Line, Seen, Send, Start

T = TypeVar("T", bound=BaseModel)

MARKER = re.compile(r"mark-[A-Za-z0-9_-]+")
"""A marker in the arguments of a call."""


@dataclass
class Call:
    """A tool call, from the events of its log."""

    call_id: str
    run_id: str | None
    requested: Seen
    markers: frozenset[str]
    """Markers in the final arguments."""
    arguments: JsonValue
    """The final arguments, after a user's edit."""
    replaced_markers: frozenset[str] = frozenset()
    """Markers of arguments that a user replaced."""
    results: list[Seen] = field(default_factory=list[Seen])
    refused_by: str | None = None
    """The outcome of the approval request that forbade the call; None if none did."""

    @property
    def signature(self) -> str:
        """The tool and its arguments; equal for equal calls."""
        return json.dumps([self.requested.data.get("name"), self.arguments], sort_keys=True)

    @property
    def error_kind(self) -> str | None:
        """The error kind of the first result; None without a result, and for a success."""
        return cast("str | None", self.results[0].data.get("error_kind")) if self.results else None


@dataclass
class Run:
    """A run, from the events of its log."""

    run_id: str
    conversation_id: str
    ends: list[Seen] = field(default_factory=list[Seen])
    after_end: list[Seen] = field(default_factory=list[Seen])
    """Events of the run after its terminal event."""
    cancelled: Seen | None = None
    """The event that records the request to cancel the run."""
    after_cancel: list[Seen] = field(default_factory=list[Seen])
    """The events of the run after that request."""
    progress: list[Seen] = field(default_factory=list[Seen])
    """The progress events of a workflow's steps."""


@dataclass
class ApprovalRecord:
    """An approval request, from the events of its log."""

    approval_id: str
    calls: tuple[str, ...] = ()
    resolutions: list[Seen] = field(default_factory=list[Seen])
    requested: Seen | None = None


@dataclass
class Folded:
    """A recording, indexed."""

    lines: list[Line]
    logs: dict[tuple[str, str], dict[int, Seen]] = field(init=False)
    """By conversation and epoch: each event as its first reader received it, by number."""
    runs: dict[str, Run] = field(init=False, default_factory=dict[str, Run])
    calls: dict[str, Call] = field(init=False, default_factory=dict[str, Call])
    approvals: dict[str, ApprovalRecord] = field(init=False, default_factory=dict[str, ApprovalRecord])

    def __post_init__(self) -> None:
        logs: dict[tuple[str, str], dict[int, Seen]] = defaultdict(dict)
        for seen in self.of(Seen):
            logs[seen.conversation_id, seen.log_epoch].setdefault(seen.seq, seen)
        self.logs = dict(logs)
        for log in self.logs.values():
            for number in sorted(log):
                self._add(log[number])

    def of(self, kind: type[T]) -> Iterable[T]:
        """Yield the lines of one kind, in order."""
        return (line for line in self.lines if isinstance(line, kind))

    @cached_property
    def effects(self) -> Mapping[str, list[Effect]]:
        """Return the executions by marker; an execution that was read several times counts once."""
        found: dict[str, dict[str, Effect]] = defaultdict(dict)
        for effect in self.of(Effect):
            found[effect.marker].setdefault(effect.execution, effect)
        return {marker: list(executions.values()) for marker, executions in found.items()}

    @cached_property
    def accepted(self) -> Mapping[str, list[Send]]:
        """Return the acknowledged requests by run; a message that steered an open run is not included."""
        found: dict[str, list[Send]] = defaultdict(list)
        for send in self.of(Send):
            if send.phase == "ok" and send.run_id is not None:
                found[send.run_id].append(send)
        return found

    @cached_property
    def workflows(self) -> Mapping[str, list[Start]]:
        """Return the acknowledged workflow starts by run."""
        found: dict[str, list[Start]] = defaultdict(list)
        for start in self.of(Start):
            if start.phase == "ok" and start.run_id is not None:
                found[start.run_id].append(start)
        return found

    @cached_property
    def decisions(self) -> Mapping[str, list[Decide]]:
        """Return the replies that clients received to their decisions, by approval."""
        found: dict[str, list[Decide]] = defaultdict(list)
        for decide in self.of(Decide):
            if decide.phase == "ok":
                found[decide.approval_id].append(decide)
        return found

    def _add(self, event: Seen) -> None:
        if event.run_id is not None:
            self._add_to_run(event.run_id, event)
        data = event.data
        match event.type:
            case "tool_call.requested":
                call_id = str(data["tool_call_id"])
                arguments = data.get("arguments")
                self.calls[call_id] = Call(call_id, event.run_id, event, markers_in(arguments), arguments)
            case "tool_call.completed":
                call = self.calls.get(str(data["tool_call_id"]))
                if call is not None:
                    call.results.append(event)
            case "approval.requested":
                approval = self._approval(str(data["approval_id"]))
                approval.requested = event
                items = cast(list[dict[str, Any]], data["items"])
                approval.calls = tuple(str(item["tool_call_id"]) for item in items)
            case "approval.resolved":
                self._resolve(event)
            case _:
                pass

    def _add_to_run(self, run_id: str, event: Seen) -> None:
        run = self.runs.setdefault(run_id, Run(run_id, event.conversation_id))
        if event.type == "run.finished":
            run.ends.append(event)
        elif run.ends:
            run.after_end.append(event)
        if run.cancelled is not None:
            run.after_cancel.append(event)
        elif event.type == "run.cancel_requested":
            run.cancelled = event
        elif event.type == "workflow.progress":
            run.progress.append(event)

    def _approval(self, approval_id: str) -> ApprovalRecord:
        return self.approvals.setdefault(approval_id, ApprovalRecord(approval_id))

    def _resolve(self, event: Seen) -> None:
        approval = self._approval(str(event.data["approval_id"]))
        approval.resolutions.append(event)
        outcome = str(event.data["outcome"])
        decisions = cast(list[dict[str, Any]], event.data.get("decisions") or [])
        verdicts = {str(one["tool_call_id"]): one for one in decisions}
        for call_id in approval.calls:
            call = self.calls.get(call_id)
            if call is None:
                continue
            verdict = verdicts.get(call_id)
            if verdict is None or verdict["decision"] != "approve":
                call.refused_by = outcome
            elif verdict.get("arguments") is not None:
                call.arguments = verdict["arguments"]
                edited = markers_in(call.arguments)
                call.replaced_markers, call.markers = call.markers - edited, edited


def markers_in(arguments: object) -> frozenset[str]:
    """Return the markers in the arguments of a call."""
    return frozenset(MARKER.findall(json.dumps(arguments)))
