"""JSON that is accepted can be read back from a log, which nests it deeper."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from banksman.contracts.approvals import (
    ApprovalItem,
    ApprovalRequested,
    ApprovalResolved,
    ItemDecision,
    Preview,
)
from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import BadInput
from banksman.contracts.events import (
    Commit,
    Event,
    EventBody,
    RunFinished,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
    TrackedCall,
)
from banksman.contracts.json_text import MAX_DEPTH
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import JsonObject, JsonValue, strict_json

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def nested(levels: int) -> JsonObject:
    """Return an object with this nesting depth."""
    value: JsonObject = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


DEEP = nested(MAX_DEPTH)
ITEM = ApprovalItem(
    tool_call_id="k", name="bash", arguments=DEEP, digest="0", preview=Preview(kind="text", text="")
)
TRACKED = TrackedCall(tool="bash", params=DEEP, result=DEEP, iteration=1)
BODIES: tuple[EventBody, ...] = (
    RunStarted(
        message_id="m", message="go", settings=RunSettings(assistant_id="a", model="m:m", variables=DEEP)
    ),
    ToolCallRequested(call=ToolCall(id="k", name="bash", arguments=DEEP)),
    ApprovalRequested(approval_id="a", expires_at=NOW, items=(ITEM,)),
    ApprovalResolved(
        approval_id="a",
        outcome="approved",
        by="ann",
        decisions=(ItemDecision(tool_call_id="k", decision="approve", arguments=DEEP),),
    ),
    ToolCallCompleted(result=ToolResult(tool_call_id="k", content=DEEP)),
    RunFinished(
        status="completed", content="", service="s", model="m:m", iterations=1, tool_calls=(TRACKED,)
    ),
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.type)
def test_commit_with_the_deepest_accepted_json_is_readable(body: EventBody) -> None:
    """P1, P5: an unreadable commit would make the whole conversation unreadable."""
    commit = Commit(
        ts=NOW, id="e", log_epoch="l", first_seq=1, owner=None, events=(Event(seq=1, ts=NOW, data=body),)
    )
    assert Commit.model_validate_json(commit.model_dump_json(by_alias=True)) == commit


def test_deeper_json_is_refused_with_the_limit() -> None:
    value: JsonValue = nested(MAX_DEPTH + 1)
    assert strict_json(json.dumps(DEEP)) == DEEP
    with pytest.raises(BadInput, match=f"at most {MAX_DEPTH} deep"):
        strict_json(json.dumps(value))
