"""The published schemas have every field that the tables of the interfaces name (section 3).

`tests/gateway/websocket/test_schemas.py` proves that the frames on the wire match these schemas.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import pytest

from banksman.gateway.interfaces.http.routes import websocket_schema
from banksman.gateway.interfaces.websocket import transport

Schema = dict[str, Any]

CLIENT = {
    "hello": "token client.name client.version resume.conversation_id resume.after_seq resume.log_epoch",
    "auth.refresh": "token",
    "ping": "t",
    "conversation.create": "title assistant system_prompt_id model settings.tool_protocol "
    "settings.max_iterations settings.run_timeout_s settings.variables",
    "subscribe": "conversation_id after_seq detail",
    "unsubscribe": "conversation_id",
    "chat.send": "conversation_id content mode overrides.model overrides.max_iterations "
    "overrides.run_timeout_s overrides.tool_protocol variables attachments",
    "run.cancel": "run_id reason",
    "approval.reply": "approval_id decisions.tool_call_id decisions.decision decisions.arguments "
    "decisions.reason all remember",
    "workflow.start": "workflow parameters conversation_id",
    "input.reply": "request_id value",
}
"""Fields by frame, besides `type`, `id` and `conversation_id` of the envelope."""
SERVER = {
    "welcome": "protocol server_version connection_id tenant user heartbeat_s limits.frame_bytes "
    "limits.inflight limits.rate resumed not_resumed.conversation_id not_resumed.reason",
    "pong": "t ts",
    "ack": "reply_to conversation_id run_id message_id resolved_by already_resolved",
    "subscribed": "conversation_id head_seq oldest_seq log_epoch active_run pending_approvals",
    "replay.done": "conversation_id seq",
    "resync_required": "conversation_id oldest_seq reason",
    "error": "reply_to code message retryable retry_after_s details",
    "server.draining": "reconnect_after_s",
}
EVENTS = {
    "run.queued": ("final", "position"),
    "run.started": (
        "final",
        "model tool_protocol limits.max_iterations limits.run_timeout_s message",
    ),
    "iteration.started": ("steps", "n max"),
    "message.delta": ("final", "message_id offset text"),
    "reasoning.delta": ("full", "message_id text"),
    "model.waiting": ("final", "model reason error attempt next_attempt_s"),
    "message.completed": ("final", "message_id role content finish_reason"),
    "protocol.retry": ("steps", "attempt max error"),
    "tool_call.requested": ("steps", "tool_call_id name arguments terminate requires_approval"),
    "approval.requested": (
        "final",
        "approval_id expires_at items.tool_call_id items.name items.arguments items.digest items.editable "
        "items.preview.kind items.preview.command items.preview.path items.preview.old items.preview.new "
        "items.preview.url items.preview.text",
    ),
    "approval.resolved": ("final", "approval_id outcome by decisions"),
    "tool_call.started": ("steps", "runner"),
    "tool_call.output": ("full", "stream text"),
    "tool_call.completed": (
        "steps",
        "tool_call_id is_error error_kind exit_code content truncated output_ref duration_ms "
        "runner started_at",
    ),
    "workspace.changed": ("steps", "paths.path paths.change"),
    "run.finished": (
        "final",
        "status content service model iterations tool_calls.tool tool_calls.params tool_calls.result "
        "tool_calls.iteration max_iterations_reached usage.input_tokens usage.output_tokens "
        "usage.cached_tokens usage.cost_usd error.code error.message",
    ),
    "workflow.progress": ("final", "step total message"),
    "input.requested": ("final", "request_id message schema"),
    "input.resolved": ("final", "request_id value by"),
    "workspace.restored": ("final", "snapshot_ts lost_calls"),
    "conversation.updated": ("final", "title status"),
}
"""Level of detail, and fields of `data`."""
ENVELOPE = {"type", "seq", "prev_seq", "log_epoch", "ts", "conversation_id", "run_id", "data"}
NOT_STORED = {"message.delta", "reasoning.delta", "model.waiting", "tool_call.started", "tool_call.output"}
"""Events without `seq`."""


@cache
def document() -> Schema:
    return websocket_schema()


def with_field(frames: Schema, name: str) -> Schema:
    """Return the definition of a frame by its type."""
    return next(one for one in frames["$defs"].values() if _type_of(one) == name)


def _type_of(schema: Schema) -> object:
    kind = cast(Schema, schema.get("properties", {})).get("type", {})
    return kind.get("const", kind.get("default"))


def missing(frames: Schema, schema: Schema, fields: str) -> list[str]:
    """Return the fields that a schema does not have; `a.b` is a field of the object, or of each item, `a`."""
    return [field for field in fields.split() if not _has(frames, [schema], field.split("."))]


def _has(frames: Schema, schemas: list[Schema], path: list[str]) -> bool:
    if not path:
        return True
    name, *rest = path
    found = [
        one["properties"][name]
        for schema in schemas
        for one in _members(frames, schema)
        if name in one.get("properties", {})
    ]
    return bool(found) and _has(frames, found, rest)


def _members(frames: Schema, schema: Schema) -> list[Schema]:
    """Return a schema without references, the members of a union, and the items of a list."""
    if "$ref" in schema:
        return _members(frames, frames["$defs"][schema["$ref"].rpartition("/")[2]])
    parts = [
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        *([schema["items"]] if "items" in schema else ()),
    ]
    return [schema, *(one for part in parts for one in _members(frames, part))]


@pytest.mark.parametrize("name", CLIENT)
def test_a_client_frame_accepts_every_field_of_its_line(name: str) -> None:
    frames = document()["client"]
    assert missing(frames, with_field(frames, name), f"{CLIENT[name]} type id conversation_id") == []


@pytest.mark.parametrize("name", SERVER)
def test_a_control_frame_has_every_field_of_its_line(name: str) -> None:
    frames = document()["server"]
    assert missing(frames, with_field(frames, name), SERVER[name]) == []


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_has_the_level_of_detail_and_every_field_of_its_line(name: str) -> None:
    frames = document()["events"]
    event = next(one for one in frames["oneOf"] if one["title"] == name)
    detail, fields = EVENTS[name]
    assert event["x-detail"] == detail
    assert missing(frames, event["properties"]["data"], fields) == []
    envelope = ENVELOPE - ({"seq", "prev_seq", "log_epoch", "ts"} if name in NOT_STORED else set())
    assert envelope - set(event["properties"]) == set()
    assert ("seq" in event["properties"]) == (name not in NOT_STORED)


def test_every_close_code_of_the_table_has_a_meaning_in_the_code() -> None:
    codes = {value for name, value in vars(transport).items() if name.isupper() and isinstance(value, int)}
    assert {1011, 1012, 4400, 4401, 4403, 4408, 4409, 4426, 4429, 4508} <= codes
