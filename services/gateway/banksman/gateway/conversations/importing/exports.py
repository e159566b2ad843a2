"""The events of an exported conversation under new ids, as agents write them into a log. Pure.

A file is not trusted. What it states is shown, and no more: its runs have ended, its decisions apply to no
other call, its usage does not count, and it names no stored object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from banksman.contracts.assistants import Limits, RunSettings, ToolSettings
from banksman.contracts.errors import BadInput
from banksman.contracts.events import KNOWN_TYPES, Event, EventBody, KnownBody
from banksman.contracts.ids import digest
from banksman.contracts.messages import AssistantMessage, ToolMessage
from banksman.contracts.validation_errors import bad_input
from banksman.contracts.wire import JsonObject, Stored, Timestamp
from banksman.runs.fold import apply_events
from banksman.runs.state import Conversation


class ReadRequest(Stored):
    tenant: str
    source: str
    """The id from which those of the conversations are derived."""
    start: int


class ReadConversation(Stored):
    conversation_id: str
    title: str
    product: str
    runs: int = 0
    error: str | None = None
    left_out: Mapping[str, int] = Field(default_factory=dict)
    parts: tuple[int, ...] = ()
    """Bytes of each part."""


class ReadConversations(Stored):
    items: tuple[ReadConversation, ...] = ()
    next: int | None = None
    error: str | None = None


MAX_EVENTS = 20_000
BODY: TypeAdapter[EventBody] = TypeAdapter(KnownBody)
OPEN_RUN = "open run"
"""What is left out of a run that had not ended."""
OUTPUT = "tool_call.output"
"""What is left out of a call whose complete output is an object of its own."""


class ExportedEvent(Stored):
    """An event as its frame states it."""

    type: str = Field(max_length=100)
    run_id: str | None = Field(default=None, max_length=200)
    iteration: int | None = None
    ts: Timestamp | None = None
    data: JsonObject = Field(default_factory=dict)


def imported_events(
    frames: tuple[ExportedEvent, ...],
    tenant: str,
    conversation_id: str,
    now: datetime,
    left_out: Counter[str],
) -> tuple[Event, ...]:
    """Return the events of the runs that have ended; `left_out` counts what is missing, by name.

    Raises `BadInput` for a malformed event, and for events that are no history of a conversation.
    """
    if len(frames) > MAX_EVENTS:
        raise BadInput("events", f"{len(frames)} events", f"at most {MAX_EVENTS} events")
    ended = {frame.run_id for frame in frames if frame.type == "run.finished"} | {None}
    left_out.update({OPEN_RUN: len({frame.run_id for frame in frames} - ended)})
    ids = _NewIds(conversation_id)
    events = list[Event]()
    for at, frame in enumerate(frames):
        body = _body(ids, frame, at, left_out) if frame.run_id in ended else None
        if body is not None:
            run_id = None if frame.run_id is None else ids.run(frame.run_id)
            ts = min(frame.ts or now, now)
            event = Event(
                seq=len(events) + 1, ts=ts, run_id=run_id, iteration=frame.iteration, imported=True, data=body
            )
            events.append(event)
    _check(Conversation(tenant, conversation_id), events)
    return tuple(events)


class _NewIds:
    """New ids, derived from the conversation and the old ids, so that a repeat has the same ids."""

    def __init__(self, conversation_id: str) -> None:
        self._conversation_id = conversation_id

    def run(self, old: Any) -> str:
        return f"{self._conversation_id}-{self._derived(old, 12)}"

    def of(self, old: Any) -> str:
        return f"i{self._derived(old, 21)}"

    def request(self, old: Any, run_id: str) -> str:
        return f"{self.run(run_id)}-{self._derived(old, 12)}"

    def item(self, item: Any) -> Any:
        """Return an item of an approval request or a decision, with the new id of its call."""
        return {**item, "tool_call_id": self.of(item["tool_call_id"])}

    def _derived(self, old: Any, chars: int) -> str:
        return digest(f"{self._conversation_id}/{old}".encode(errors="replace"))[:chars]


def _body(ids: _NewIds, frame: ExportedEvent, at: int, left_out: Counter[str]) -> EventBody | None:
    deletes = frame.type == "conversation.updated" and frame.data.get("status") is not None
    if frame.type not in KNOWN_TYPES or deletes:
        left_out[frame.type] += 1
        return None
    data: JsonObject = {}
    try:
        data = {**_shaped(frame.type, _renamed(ids, frame), left_out), "type": frame.type}
        return BODY.validate_python(data)
    except ValidationError as error:
        mistake = bad_input(error, whole=data)
        raise BadInput(f"events[{at}].{mistake.field}", mistake.value, mistake.expected) from error
    except (LookupError, TypeError, AttributeError) as error:
        raise BadInput(f"events[{at}].data", None, f"the data of {frame.type}") from error


def _renamed(ids: _NewIds, frame: ExportedEvent) -> dict[str, Any]:
    data: dict[str, Any] = dict(frame.data)
    run_id = frame.run_id or ""
    for name in data.keys() & {"message_id", "tool_call_id"}:
        data[name] = ids.of(data[name])
    for name in data.keys() & {"approval_id", "request_id"}:
        data[name] = ids.request(data[name], run_id)
    for name in data.keys() & {"items", "decisions"}:
        data[name] = [ids.item(item) for item in data[name]]
    if "lost_calls" in data:
        data["lost_calls"] = [ids.of(one) for one in data["lost_calls"]]
    if data.get("tool_calls_ref"):
        data["tool_calls_ref"] = f"/context/runs/{ids.run(run_id)}/tool-calls"
    if data.get("branch"):
        after = data["branch"]["after"]
        data["branch"] = {"after": None if after is None else ids.of(after)}
    return data


def _shaped(kind: str, data: dict[str, Any], left_out: Counter[str]) -> Mapping[str, Any]:
    """Return the stored body of the `data` of a frame; the reverse of `event_data`."""
    match kind:
        case "run.started" | "run.queued":
            return data | {"settings": _settings(data)}
        case "tool_call.requested":
            return {"call": {**data, "id": data.get("tool_call_id")}}
        case "tool_call.completed":
            left_out[OUTPUT] += data.pop("output_ref", None) is not None
            return {"result": data}
        case "run.finished":
            return {"content": "", "service": "banksman", "model": "", "iterations": 0} | data
        case "protocol.retry":
            return {**data, "message_id": "unknown", "reply": "", "correction": ""}
        case _:
            return data


def _settings(data: Mapping[str, Any]) -> RunSettings:
    limits: Any = data.get("limits") or {}
    names = ("model", "assistant_revision", "tool_protocol", "branch", "compact", "traceparent")
    return RunSettings(
        assistant_id=data.get("assistant", "default"),
        tools=ToolSettings(max_iterations=limits.get("max_iterations", 10)),
        limits=Limits(run_timeout_s=limits.get("run_timeout_s", 300.0)),
        **{name: data[name] for name in names if name in data},
    )


def _check(state: Conversation, events: list[Event]) -> None:
    """Raise `BadInput` unless the events leave a conversation that every model can continue."""
    if not any(event.data.type == "run.finished" for event in events):
        raise BadInput("events", len(events), "the events of an exported conversation with a run that ended")
    try:
        state = apply_events(state, events)
    except (ValueError, LookupError, TypeError) as error:
        raise BadInput("events", None, f"events in the order of a conversation ({error})") from error
    results = {one.result.tool_call_id for one in state.history if isinstance(one, ToolMessage)}
    if missing := [call for call in _calls(state) if call not in results]:
        raise BadInput("events", missing[0], "a result of each call")
    if state.run is not None or state.queue:
        raise BadInput("events", None, "runs that have ended")


def _calls(state: Conversation) -> Iterator[str]:
    for message in state.history:
        if isinstance(message, AssistantMessage):
            yield from (call.id for call in message.calls)
