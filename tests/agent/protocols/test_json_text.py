"""Calls as text: which replies are calls, malformed attempts or final (R1, R9, R10, R11, A25)."""

from __future__ import annotations

import json

import pytest

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import (
    MAX_REPLY_CHARS,
    Final,
    Malformed,
    ModelReply,
    ModelRequest,
    RequestedCall,
    RequestedCalls,
)
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import AssistantMessage, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult

PROTOCOL = protocol_for("json_text")

LS = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'
LS_CALL = RequestedCall("bash", {"command": "ls"}, terminate=False)


def read(text: str, *, attempt: int = 1, finish_reason: FinishReason = "stop"):
    return PROTOCOL.read(ModelReply(text=text, finish_reason=finish_reason), attempt=attempt)


def malformed(text: str, *, attempt: int = 1, finish_reason: FinishReason = "stop") -> Malformed:
    reading = read(text, attempt=attempt, finish_reason=finish_reason)
    assert isinstance(reading, Malformed), reading
    return reading


@pytest.mark.parametrize(
    ("reply", "prose"),
    [
        (LS, None),
        (f"\n\t {LS} \n", None),
        (f"```json\n{LS}\n```", None),
        (f"```\n{LS}\n```", None),
        (f"~~~ json\n{LS}\n~~~", None),
        (f"I will look.\n{LS}", "I will look."),
        (f"{LS}\nThat lists the files.", "That lists the files."),
        (f"I will look.\n\n```json\n{LS}\n```\n\nPlease wait.", "I will look.\n\nPlease wait."),
        (f'First {{"plan": ["look"]}} and then {LS}', 'First {"plan": ["look"]} and then'),
        (f'A stray {{" and {LS}', 'A stray {" and'),
        (f"Sets like {{a, b}} or {{1}}: {LS}", "Sets like {a, b} or {1}:"),
        (f"[{LS}]", "[\n\n]"),
    ],
)
def test_one_valid_object_is_the_call_with_any_surrounding_prose(reply: str, prose: str | None) -> None:
    assert read(reply) == RequestedCalls(prose, (LS_CALL,))


def test_fields_may_have_any_order_and_terminate_is_read() -> None:
    """R3."""
    reply = '{"terminate": true, "parameters": {}, "tool": "now"}'

    assert read(reply) == RequestedCalls(None, (RequestedCall("now", {}, terminate=True),))


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Hello there.",
        "Use the tool called bash.",
        'The word "tool" is a noun.',
        'In Python: d = {"a": 1, "b": {"tool": 2}}',
        '{"answer": 42}',
        "```json\n{}\n```",
        f"An example:\n````markdown\nWrite this:\n```json\n{LS}\n```\n````\nThat is all.",
        f"```markdown\n```json\n{LS}\n```\n```",
        json.dumps({"quoted": LS}).replace("{", "(", 1),
    ],
)
def test_text_without_a_call_is_final(reply: str) -> None:
    """R11."""
    assert read(reply) == Final(reply, "stop")


@pytest.mark.parametrize(
    ("reply", "rule", "position"),
    [
        (LS + LS, "more than one call", len(LS)),
        (f"{LS} or {LS}", "more than one call", len(LS) + 4),
        (f"[{LS}, {LS}]", "more than one call", len(LS) + 3),
        ('{"tool": "bash"}', '"parameters" is missing', 0),
        ('{"tool": "bash", "parameters": {}}', '"terminate" is missing', 0),
        ('{"tool": "", "parameters": {}, "terminate": true}', '"tool" must be a string', 1),
        ('{"tool": 7, "parameters": {}, "terminate": true}', '"tool" must be a string', 1),
        ('{"tool": "b", "parameters": [], "terminate": true}', "must be an object, not an array", 14),
        ('{"tool": "b", "parameters": null, "terminate": true}', "must be an object, not null", 14),
        ('{"tool": "b", "parameters": "{}", "terminate": true}', "not JSON written inside a string", 14),
        ('{"tool": "b", "parameters": {}, "terminate": "false"}', "without quotes, not a string", 32),
        ('{"tool": "b", "parameters": {}, "terminate": 0}', "without quotes, not a number", 32),
        ('{"tool": "b", "parameters": {}, "terminate": true, "why": "x"}', '"why" is not allowed', 51),
        ('{"tool": "b", "tool": "c", "parameters": {}, "terminate": true}', "duplicate key 'tool'", 0),
        ('{"tool": "b", "parameters": {"a": 1, "a": 2}, "terminate": true}', "duplicate key 'a'", 0),
        ('{"tool": "b", "parameters": {"a": NaN}, "terminate": true}', "NaN is not JSON", 0),
        ('{"tool": "b", "parameters": {"a": [-1e999]}, "terminate": true}', "larger than a double", 0),
        ('{"tool": "b", "parameters": {"a": "\\ud800"}, "terminate": true}', "lone surrogates", 0),
        ('{"tool": "b", "parameters": {"a": "x\ny"}, "terminate": true}', "Invalid control character", 36),
        ('{"tool": "b", "parameters": {"a": 1,}, "terminate": true}', "property name", 36),
        ('{"tool": "b", "parameters": {}, "terminate": True}', "Expecting value", 45),
        ('{"tool": "b", "parameters": {"a": "x', "Unterminated string", 34),
        ('{"tool": "b", "parameters": {', "property name", 29),
        ('Sure: {"tool": "b", // list\n "parameters": {}, "terminate": true}', "property name", 20),
        ('{"parameters": {"a": 1,}, "tool": "b", "terminate": true}', "property name", 23),
        ('{"call": {"tool": "b", "parameters": {}, "terminate": true}}', 'no JSON object with "tool"', 0),
        ("{'name': \"tool\"}", 'no JSON object with "tool"', 0),
        (json.dumps({"arguments": LS, "name": "tool"}), 'no JSON object with "tool"', 0),
    ],
)
def test_attempt_that_breaks_a_rule_is_malformed_at_its_position(
    reply: str, rule: str, position: int
) -> None:
    """R9, R10, A25."""
    reading = malformed(reply)

    assert rule in reading.error
    assert reading.position == position
    assert reading.error in reading.correction


def test_nesting_above_the_limit_is_malformed() -> None:
    for depth in (250, 35_000):
        nested = '{"a":' * depth + "1" + "}" * depth
        call = f'{{"tool": "b", "parameters": {nested}, "terminate": true}}'
        assert "deep" in malformed(call).error


@pytest.mark.parametrize(
    "bomb",
    [
        '{"a":' * 15_000 + "1" + "}" * 15_000,
        '{"a":' + "[" * 45_000 + "]" * 45_000 + "}",
        '{"a":' * 15_000 + "{" + "]}" * 7_500,
        '{"a":{"tool":"x"},"b":' * 4_000 + "1" + "}" * 4_000,
        '{"a":1}' * 13_000,
    ],
    ids=["objects", "arrays", "unbalanced", "keys-inside", "many"],
)
def test_a_call_behind_ninety_kilobytes_of_nested_json_is_found(bomb: str) -> None:
    """A26: even where the parser gives up because of the depth."""
    for reply in (f"{bomb}\n{LS}", f"Look: {bomb} and then\n```json\n{LS}\n```"):
        reading = read(reply)
        assert isinstance(reading, RequestedCalls), reading
        assert reading.calls == (LS_CALL,)


def test_each_attempt_gets_a_different_correction() -> None:
    """R10."""
    corrections = [malformed('{"tool": "x"}', attempt=attempt).correction for attempt in (1, 2, 3)]

    assert len(set(corrections)) == 3
    assert all('"parameters" is missing' in correction for correction in corrections)
    assert "last attempt" in corrections[2]


def test_correction_of_a_call_cut_by_the_token_limit_names_the_limit() -> None:
    reading = malformed('{"tool": "write_file", "parameters": {"content": "abc', finish_reason="length")

    assert "cut off at the limit of output tokens" in reading.correction


def test_call_in_a_reply_above_the_size_limit_is_not_executed() -> None:
    assert "longer than 262,144 characters" in malformed(LS + "x" * MAX_REPLY_CHARS).error


def test_final_text_above_the_size_limit_is_cut_with_a_note() -> None:
    reading = read("x" * (MAX_REPLY_CHARS + 1))

    assert isinstance(reading, Final)
    assert len(reading.text) == MAX_REPLY_CHARS
    assert reading.text.endswith("[The reply was cut at its size limit.]")


def test_filtered_reply_executes_nothing_and_shows_no_part_of_a_call() -> None:
    for text in (LS, LS[:30]):
        reading = read(text, finish_reason="content_filter")
        assert isinstance(reading, Final)
        assert "tool" not in reading.text


def test_history_has_calls_as_json_text_and_results_as_user_messages() -> None:
    """R2."""
    call = ToolCall(id="c1", name="bash", arguments={"command": "ls"}, provider_call_id="call_1")
    result = ToolResult(tool_call_id="c1", content={"success": True, "stdout": "ä"})
    history = (
        UserMessage(message_id="m1", content="hello"),
        AssistantMessage(message_id="m2", content="Looking.", calls=(call,), protocol="json_text"),
        ToolMessage(name="bash", result=result),
    )
    tools = (ToolDefinition(name="bash", description="Runs a command."),)

    prepared = PROTOCOL.prepare(ModelRequest("m", "system", history, tools))

    _, reply_message, result_message = prepared.messages
    assert prepared.tools == ()
    assert isinstance(reply_message, AssistantMessage)
    assert (reply_message.content, reply_message.calls) == (f"Looking.\n\n{LS}", ())
    assert isinstance(result_message, UserMessage)
    assert result_message.content == 'Tool result for bash:\n{"success": true, "stdout": "ä"}'


def test_deltas_contain_prose_immediately_and_never_the_call() -> None:
    shown = PROTOCOL.delta_filter()
    pieces = ["I will ", "look at {a, b}", ".\n\n```js", "on\n{", '"tool": "ba', LS[15:], "\n```\nDone"]

    assert [shown.feed(piece) for piece in pieces] == ["I will ", "look at {a, b}", ".\n\n", "", "", "", ""]


def test_code_and_data_are_published_once_they_cannot_be_a_call() -> None:
    reply = 'Take this:\n```json\n{"a": {"b": 1}}\n```\nand `{"x": ` is broken: {"y": oops} but this is not.'
    shown = PROTOCOL.delta_filter()

    seen = "".join(shown.feed(character) for character in reply)

    assert reply.startswith(seen)
    assert len(reply) - len(seen) < 32
    assert seen + shown.flush() == reply
