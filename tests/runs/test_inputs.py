"""Values that workflows request: their providers, a single reply, and the ends of a request (pure)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from banksman.contracts.approvals import InputRequested, InputResolved
from banksman.contracts.assistants import RunSettings, WorkflowInvocation
from banksman.contracts.events import (
    CancelRequested,
    Event,
    EventBody,
    IterationStarted,
    MessageCompleted,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonValue, json_bytes
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from banksman.runs.approval.requests import SYSTEM, input_digests, open_requests, problem, resolution, sign
from banksman.runs.fold import apply_events
from banksman.runs.outcome import RESULT_BYTES
from banksman.runs.state import Conversation
from banksman.runs.steps import CloseApproval, Park, RecordEvents, next_step

KEY = b"k" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WANTED = InputRequested(
    request_id="c1-r1-i1",
    message="Which?",
    schema={"type": "integer"},
    tool_call_id="w1",
    expires_at=NOW + timedelta(days=1),
)


def folded(*more: EventBody) -> Conversation:
    settings = RunSettings(
        assistant_id="workflow", model="workflow:x", workflow=WorkflowInvocation(name="x", user="ann")
    )
    bodies: tuple[EventBody, ...] = (
        RunStarted(message_id="m1", message="x", settings=settings),
        IterationStarted(n=1, max=10),
        MessageCompleted(message_id="m2", role="assistant", content=None),
        ToolCallRequested(call=ToolCall(id="w1", name="request_input", provider_call_id="which")),
        WANTED,
        *more,
    )
    events = [
        Event(seq=seq, ts=NOW, run_id="c1-r1", iteration=1, data=body) for seq, body in enumerate(bodies, 1)
    ]
    return apply_events(Conversation("acme", "c1"), events)


def request() -> ApprovalRequest:
    (only,) = open_requests(folded())
    return only


def reply(provided_value: JsonValue, **changes: object) -> ApprovalReply:
    provided = ApprovalReply(
        tenant="acme",
        conversation_id="c1",
        run_id="c1-r1",
        approval_id=WANTED.request_id,
        outcome="approved",
        by="ann",
        digests=input_digests(WANTED, provided_value),
        value=provided_value,
        decided_at=NOW,
    )
    return sign(provided, KEY).model_copy(update=changes)


def test_a_run_that_waits_for_a_value_is_parked_and_shows_it() -> None:
    state = folded()

    assert isinstance(next_step(state, NOW), Park)
    assert state.run is not None and state.run.status == "awaiting_input"
    assert (request().input, request().items) == (WANTED, ())


def test_a_signed_value_resolves_the_request_with_the_result_of_its_step() -> None:
    resolved, completed = resolution(reply(7), request())

    assert problem(reply(7), request(), KEY) is None
    assert isinstance(resolved, InputResolved) and (resolved.value, resolved.by) == (7, "ann")
    assert isinstance(completed, ToolCallCompleted)
    assert completed.result.content == {"success": True, "value": 7}
    assert open_requests(folded(resolved, completed)) == ()


@pytest.mark.parametrize(("bytes_of_value", "stored"), [(RESULT_BYTES, True), (RESULT_BYTES + 1, False)])
def test_a_value_is_stored_up_to_the_limit_of_results(bytes_of_value: int, stored: bool) -> None:
    """A larger one, which an older gateway accepted, fails the step: the commit must hold the value twice."""
    value = "y" * (bytes_of_value - len('""'))

    resolved, completed = resolution(reply(value), request())

    assert isinstance(resolved, InputResolved) and isinstance(completed, ToolCallCompleted)
    assert resolved.value == (value if stored else None)
    assert (completed.result.is_error, completed.result.error_kind) == (
        (False, None) if stored else (True, "output_limit")
    )
    assert json_bytes(resolved) + json_bytes(completed) < 1024 * 1024
    assert open_requests(folded(resolved, completed)) == ()


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (reply(7, value=8), "not the value"),
        (reply(7, signature=""), "not signed"),
        (reply(7, by="eve"), "not signed"),
        (reply(7, digests=("a", "b")), "not signed"),
        (reply(7, approval_id="c1-r1-i2"), "another request"),
        (reply(7, outcome="cancelled", by=SYSTEM), "not signed"),
        (sign(reply(7, decided_at=NOW + timedelta(days=2)), KEY), "expired"),
    ],
)
def test_a_value_that_no_gateway_signed_in_time_is_refused(forged: ApprovalReply, reason: str) -> None:
    found = problem(forged, request(), KEY)

    assert found is not None and reason in found


def test_a_cancelled_run_closes_its_request_before_it_ends() -> None:
    cancelled = folded(CancelRequested(by="ann"))
    closing = next_step(cancelled, NOW)
    closed = resolution(
        ApprovalReply(
            tenant="acme",
            conversation_id="c1",
            run_id="c1-r1",
            approval_id=WANTED.request_id,
            outcome="cancelled",
            by=SYSTEM,
            decided_at=NOW,
        ),
        request(),
    )

    assert closing == CloseApproval(WANTED.request_id)
    assert isinstance(next_step(folded(CancelRequested(by="ann"), *closed), NOW), RecordEvents)
