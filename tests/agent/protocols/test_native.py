"""The vendors' own tool calls (R90 to R95, R99, R105)."""

from __future__ import annotations

from typing import get_args

import pytest
from structlog.testing import capture_logs

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import (
    Final,
    ModelReply,
    ModelRequest,
    RawCall,
    RequestedCall,
    RequestedCalls,
)
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import AssistantMessage, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult

PROTOCOL = protocol_for("native")
BASH = ToolDefinition(name="bash", description="Runs a command.")
OWN = BASH.model_copy(update={"input_schema": {"type": "object", "properties": {"terminate": {}}}})
LAST = BASH.model_copy(update={"terminate": True})


UNFINISHED = "I encountered an issue and could not finish the answer."
WITHHELD = "I encountered an issue: the model's provider withheld the answer."


def calls_of(
    *raw: RawCall, text: str | None = None, finish_reason: FinishReason = "tool_calls"
) -> RequestedCalls:
    reading = PROTOCOL.read(ModelReply(text=text, calls=raw, finish_reason=finish_reason))
    assert isinstance(reading, RequestedCalls), reading
    return reading


def test_parallel_calls_keep_order_ids_and_text() -> None:
    """R91, R93, R94."""
    reading = calls_of(
        RawCall("a", "bash", '{"command": "ls"}'), RawCall(None, "read_file", {"path": "x"}), text="Looking."
    )

    assert reading == RequestedCalls(
        "Looking.",
        (
            RequestedCall("bash", {"command": "ls"}, None, "a"),
            RequestedCall("read_file", {"path": "x"}, None, None),
        ),
    )


def test_empty_arguments_are_an_empty_object() -> None:
    """R52."""
    assert calls_of(RawCall("a", "now", "")).calls[0].arguments == {}


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ('{"command": ', "valid JSON"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e400}', "a number is larger than a double can hold"),
        ('{"a": "\\udc00"}', "lone surrogates"),
        ('"ls"', "one JSON object"),
        ('{"a": 1}{"a": 2}', "valid JSON"),
        ('{"a": 1} and more', "valid JSON"),
        ('"{\\"a\\": 1, \\"a\\": 2}"', "one JSON object"),
        ("```json\n[1]\n```", "valid JSON"),
        ("[1]", "one JSON object"),
        ("null", "one JSON object"),
        ("[" * 10_000, "deep"),
        ("[" * 100_000, "at most 20000 values"),
    ],
)
def test_malformed_arguments_fail_one_call_and_keep_the_others(written: str, rule: str) -> None:
    """R105."""
    with capture_logs() as logs:
        broken, good = calls_of(RawCall("a", "bash", written), RawCall("b", "bash", "{}")).calls

    [line] = logs
    assert (line["event"], line["log_level"]) == ("malformed tool arguments", "warning")
    assert line["tool"] == "bash" and rule in line["error"]

    assert broken.arguments is None
    assert rule in (broken.arguments_error or "")
    assert (good.arguments, good.arguments_error) == ({}, None)


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_complete_calls_are_read_for_every_finish_reason(reason: FinishReason) -> None:
    """R99."""
    with capture_logs() as logs:
        reading = calls_of(RawCall("a", "bash", "{}"), text="Look.", finish_reason=reason)

    assert (reading.text, len(reading.calls)) == ("Look.", 1)
    expected = reason in ("stop", "tool_calls")
    assert [line["event"] for line in logs] == ([] if expected else ["unexpected finish reason"])


@pytest.mark.parametrize("reason", ["content_filter", "unknown"])
def test_calls_that_may_be_cut_are_left_out(reason: FinishReason) -> None:
    cut, whole = RawCall("b", "bash", '{"command": "l'), RawCall("a", "bash", '{"command": "ls"}')

    assert [call.provider_call_id for call in calls_of(whole, cut, finish_reason=reason).calls] == ["a"]
    assert isinstance(PROTOCOL.read(ModelReply(text="x", calls=(cut,), finish_reason=reason)), Final)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (ModelReply(text="Done.", finish_reason="stop"), "Done."),
        (ModelReply(text="Don", finish_reason="length"), "Don"),
        (ModelReply(text=None, finish_reason="unknown"), UNFINISHED),
        (ModelReply(text="Half", finish_reason="unknown"), "Half"),
        (ModelReply(text=None, finish_reason="tool_calls"), UNFINISHED),
        (ModelReply(text=None, finish_reason="length"), UNFINISHED),
        (ModelReply(text=None, finish_reason="content_filter"), WITHHELD),
        (ModelReply(text=None, calls=(RawCall("a", "bash", "{"),), finish_reason="unknown"), UNFINISHED),
    ],
)
def test_reply_without_calls_is_final(reply: ModelReply, text: str) -> None:
    """R90, R99."""
    with capture_logs() as logs:
        reading = PROTOCOL.read(reply)

    expected = reply.finish_reason == "stop"
    events = [line["event"] for line in logs if line["event"] != "malformed tool arguments"]
    assert events == ([] if expected else ["unexpected finish reason"])
    assert isinstance(reading, Final)
    assert reading.text == text


def history(protocol: str) -> tuple[UserMessage, AssistantMessage, ToolMessage]:
    reply = {"message_id": "m2", "content": None, "calls": (ToolCall(id="c1", name="bash"),)}
    return (
        UserMessage(message_id="m1", content="hello"),
        AssistantMessage.model_validate({**reply, "protocol": protocol}),
        ToolMessage(name="bash", result=ToolResult(tool_call_id="c1", content={"success": True})),
    )


def test_calls_written_as_text_stay_text_in_the_history() -> None:
    prepared = PROTOCOL.prepare(ModelRequest("m", "", history("json_text"), (BASH,)))

    _, reply, outcome = prepared.messages
    assert isinstance(reply, AssistantMessage)
    assert reply.calls == ()
    assert reply.content == '{"tool": "bash", "parameters": {}, "terminate": false}'
    assert isinstance(outcome, UserMessage)


def test_native_calls_stay_native_if_tools_are_offered() -> None:
    request = ModelRequest("m", "", history("native"), (BASH,))

    assert PROTOCOL.prepare(request).messages == request.messages


@pytest.mark.parametrize(
    ("tool", "arguments", "read"),
    [
        (
            BASH,
            '{"command": "ls", "terminate": true}',
            RequestedCall("bash", {"command": "ls"}, terminate=True),
        ),
        (BASH, '{"terminate": false}', RequestedCall("bash", {})),
        (OWN, '{"terminate": true}', RequestedCall("bash", {"terminate": True})),
        (LAST, '{"terminate": true}', RequestedCall("bash", {"terminate": True})),
    ],
)
def test_terminate_is_read_where_the_offered_schema_has_it(
    tool: ToolDefinition, arguments: str, read: RequestedCall
) -> None:
    """R36: a tool with such a parameter of its own, or that always ends the run, keeps its schema."""
    [offered] = PROTOCOL.prepare(ModelRequest("m", "", (), (tool,))).tools
    reply = ModelReply(text=None, calls=(RawCall(None, "bash", arguments),), finish_reason="tool_calls")

    assert PROTOCOL.read(reply, tools=(tool,)) == RequestedCalls(None, (read,))
    assert (offered == tool) == (tool is not BASH)


def test_terminate_must_be_a_boolean() -> None:
    """R9, R36."""
    raw = RawCall(None, "bash", '{"terminate": "true"}')
    reading = PROTOCOL.read(ModelReply(text=None, calls=(raw,), finish_reason="tool_calls"), tools=(BASH,))

    assert isinstance(reading, RequestedCalls)
    assert reading.calls[0].arguments is None
    assert "must be true or false" in (reading.calls[0].arguments_error or "")


def test_run_without_tools_sends_earlier_calls_as_prose() -> None:
    _, reply, outcome = PROTOCOL.prepare(ModelRequest("m", "", history("native"))).messages

    assert isinstance(reply, AssistantMessage)
    assert (reply.content, reply.calls) == ("[Called bash with {}]", ())
    assert isinstance(outcome, UserMessage)


def test_deltas_contain_all_text_immediately() -> None:
    shown = PROTOCOL.delta_filter()

    assert [shown.feed('{"tool": '), shown.flush()] == ['{"tool": ', ""]
