"""The complete calls of a run, from the events of its log. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from banksman.contracts.approvals import ApprovalResolved
from banksman.contracts.events import (
    Event,
    IterationStarted,
    ToolCallCompleted,
    ToolCallRequested,
    TrackedCall,
)
from banksman.contracts.tools import ToolCall


@dataclass(frozen=True, slots=True)
class RunCall:
    """A call with its id."""

    tool_call_id: str
    tracked: TrackedCall


def calls_of(events: Iterable[Event], run_id: str) -> list[RunCall]:
    """Return the calls of a run in the order of their results, as its outcome lists them (R102)."""
    requested: dict[str, ToolCall] = {}
    found: list[RunCall] = []
    iteration = 0
    for event in events:
        if event.run_id != run_id:
            continue
        match event.data:
            case IterationStarted(n=n):
                iteration = n - 1
            case ToolCallRequested(call=call):
                requested[call.id] = call
            case ApprovalResolved(decisions=decisions):
                edited = {one.tool_call_id: one.arguments for one in decisions if one.arguments is not None}
                for call_id, arguments in edited.items():
                    if call_id in requested:
                        requested[call_id] = requested[call_id].model_copy(update={"arguments": arguments})
            case ToolCallCompleted(result=result):
                # A second result of the same call changes nothing.
                call = requested.pop(result.tool_call_id, None)
                if call is not None:
                    tracked = TrackedCall(
                        tool=call.name, params=call.arguments, result=result.content, iteration=iteration
                    )
                    found.append(RunCall(call.id, tracked))
            case _:
                pass
    return found
