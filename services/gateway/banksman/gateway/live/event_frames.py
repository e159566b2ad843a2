"""Frames of events, as clients receive them, and their JSON Schemas."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json

from banksman.contracts import event_frames, events
from banksman.contracts.approvals import ApprovalRequested
from banksman.contracts.frames import Subscribed
from banksman.contracts.wire import JsonValue
from banksman.gateway.conversations.view import ConversationView

EVENT_BYTES = 256 * 1024
"""Size above which the long texts of an event are truncated."""
CUT_TEXT_CHARS = 2_000
"""Characters that remain of a truncated text."""


def subscribed(conversation_id: str, view: ConversationView) -> Subscribed:
    run = view.open_run
    pending = tuple(
        {**approval.requested.model_dump(mode="json", exclude={"type"}), "run_id": approval.run_id}
        for approval in view.approvals.values()
    )
    wanted = tuple(
        {**one.requested.model_dump(mode="json", by_alias=True, exclude={"type"}), "run_id": one.run_id}
        for one in view.inputs.values()
    )
    return Subscribed(
        conversation_id=conversation_id,
        head_seq=view.last_seq,
        oldest_seq=view.oldest_seq,
        log_epoch=view.log_epoch,
        active_run=None if run is None else {"run_id": run.run_id, "status": run.status},
        pending_approvals=pending,
        pending_inputs=wanted,
    )


def encoded_event(
    event: events.Event, conversation_id: str, log_epoch: str, prev_seq: int, *, whole: bool = False
) -> str:
    """Encode an event frame as JSON text.

    Long texts of an event above 256 KiB are truncated, except in approval requests: users must see everything
    that they approve. The structured output of a run, which has its own limit, stays complete.
    """
    frame = event_frames.event_frame(event, conversation_id, log_epoch, prev_seq)
    text = to_json(frame).decode()
    if len(text) > EVENT_BYTES and not whole and not isinstance(event.data, ApprovalRequested):
        data = event_frames.event_data(event)
        output = {name: data[name] for name in ("structured_output",) if name in data}
        frame["data"] = {**_cut_object(data), **output, "truncated": True}
        text = to_json(frame).decode()
    return text


def _cut_object(data: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: _cut(value) for name, value in data.items()}


def _cut(value: JsonValue) -> JsonValue:
    match value:
        case str() if len(value) > CUT_TEXT_CHARS:
            return f"{value[:CUT_TEXT_CHARS]}… ({len(value) - CUT_TEXT_CHARS} characters left out)"
        case dict():
            return _cut_object(value)
        case list():
            return [_cut(item) for item in value]
        case _:
            return value


_HIDDEN = {
    "MessageCompleted": {"provider_state", "provider", "protocol", "usage", "provenance"},
    "ToolResult": {"changed", "output_key"},
}
"""Stored fields that are not sent."""
_SHOWN = {"ConversationUpdated": {"title", "status"}}
"""Stored bodies of which only these fields are sent."""

_STRING, _NUMBER = {"type": "string"}, {"type": "integer"}
_TIME = {**_STRING, "format": "date-time"}
_LIVE_FIELDS: dict[str, Any] = {"conversation_id": _STRING, "run_id": _STRING, "ts": _TIME}
_STORED_FIELDS: dict[str, Any] = {
    "seq": {**_NUMBER, "description": "Number of the event in its conversation, 1..n without gaps."},
    "prev_seq": {**_NUMBER, "description": "Number of the last event that this subscription was sent."},
    "log_epoch": _STRING,
    "ts": _TIME,
    "conversation_id": _STRING,
    "run_id": {"type": ["string", "null"]},
}


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema of every event frame, one alternative for each type."""
    stored, live = event_frames.STORED_DATA, event_frames.LIVE_DATA
    models = {*stored.values(), *live.values()}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, document = models_json_schema([(model, "serialization") for model in ordered])
    definitions: dict[str, Any] = document["$defs"]
    for model in ordered:
        _remove_unsent(definitions[model.__name__])
    frames = [_frame(kind, model, _STORED_FIELDS) for kind, model in stored.items()]
    frames += [_frame(kind, model, _LIVE_FIELDS) for kind, model in live.items()]
    return {"oneOf": frames, "$defs": definitions}


def _remove_unsent(schema: dict[str, Any]) -> None:
    """Remove the fields of a stored body that `event_data` leaves out."""
    name, fields = schema["title"], schema.get("properties", {})
    shown = _SHOWN.get(name, set(fields) - {"type"}) - _HIDDEN.get(name, set())
    schema["properties"] = {field: value for field, value in fields.items() if field in shown}
    schema["required"] = [field for field in schema.get("required", ()) if field in shown]


def _frame(kind: str, data: type[BaseModel], fields: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **fields, "data": {"$ref": f"#/$defs/{data.__name__}"}}
    optional = {"iteration": _NUMBER, "imported": {"type": "boolean"}} if "seq" in fields else {}
    return {
        "title": kind,
        "type": "object",
        "properties": {**properties, **optional},
        "required": list(properties),
        # The lowest level of detail at which a subscription receives the event.
        "x-detail": event_frames.LEVELS[kind],
    }
