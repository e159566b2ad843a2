"""Frames of stored events, as clients receive them."""

from __future__ import annotations

from pydantic_core import to_json

from banksman.contracts.approvals import ApprovalRequested
from banksman.contracts.event_frames import event_data, event_frame
from banksman.contracts.events import Event
from banksman.contracts.frames import Subscribed
from banksman.contracts.wire import JsonValue
from banksman.gateway.conversations.view import ConversationView

EVENT_BYTES = 256 * 1024
"""Size above which the long texts of an event are truncated."""
CUT_TEXT_CHARS = 2_000
"""Characters that remain of a truncated text."""


def subscribed(conversation_id: str, view: ConversationView) -> Subscribed:
    """Return the head of a conversation, with its open approval requests and requests for values."""
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


def encoded_event(event: Event, conversation_id: str, log_epoch: str, prev_seq: int) -> str:
    """Encode an event frame as JSON text.

    Long texts of an event above 256 KiB are truncated, except in approval requests: users must see everything
    that they approve.
    """
    frame = event_frame(event, conversation_id, log_epoch, prev_seq)
    text = to_json(frame).decode()
    if len(text) > EVENT_BYTES and not isinstance(event.data, ApprovalRequested):
        frame["data"] = {**_cut_object(event_data(event)), "truncated": True}
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
