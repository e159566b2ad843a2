"""Stored events as clients are sent them."""

from __future__ import annotations

from pydantic_core import to_json

from banksman.contracts.events import ApprovalRequested, Event
from banksman.contracts.frames import Subscribed, event_data, event_frame
from banksman.contracts.wire import JsonValue
from banksman.gateway.service.views import ConversationView

EVENT_BYTES = 256 * 1024
"""A longer event is sent with its long texts cut."""
CUT_TEXT_CHARS = 2_000
"""Characters that are left of a text in an event that is too long."""


def subscribed(conversation_id: str, view: ConversationView) -> Subscribed:
    """The head of a conversation, as a subscriber is told."""
    run = view.open_run
    pending = tuple(
        {**question.asked.model_dump(mode="json", exclude={"type"}), "run_id": question.run_id}
        for question in view.questions.values()
    )
    return Subscribed(
        conversation_id=conversation_id,
        head_seq=view.last_seq,
        oldest_seq=view.oldest_seq,
        log_epoch=view.log_epoch,
        active_run=None if run is None else {"run_id": run.run_id, "status": run.status},
        pending_approvals=pending,
    )


def encoded_event(event: Event, conversation_id: str, log_epoch: str, prev_seq: int) -> str:
    """An event frame as text, at most 256 KiB but for questions, which are shown in full."""
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
