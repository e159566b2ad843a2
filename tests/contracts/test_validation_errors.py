"""Validation errors name the field, the value and what is expected, in plain English."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import CLIENT_FRAME, ClientFrame
from banksman.contracts.wire import parse, parse_as
from banksman.gateway.identity.operations import SecretBody
from banksman.gateway.mcp_servers.bodies import McpClientBody
from banksman.gateway.mcp_servers.configuration import NewMcpServer

SEND: dict[str, Any] = {"type": "chat.send", "id": "1", "conversation_id": "c1", "content": "hi"}
CREATE: dict[str, Any] = {"type": "conversation.create", "id": "1"}
DECIDE: dict[str, Any] = {"type": "approval.reply", "id": "1", "approval_id": "a1"}
ASSISTANT: TypeAdapter[Any] = TypeAdapter(Assistant)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({**SEND, "mod": "x"}, "mod is not a known field; did you mean mode?"),
        (
            {**SEND, "overrides": {"max_iteration": 3}},
            "overrides.max_iteration is not a known field; did you mean max_iterations?",
        ),
        ({**SEND, "zzz": "x"}, "zzz is not a known field"),
        ({**SEND, "mod" * 50: "x"}, f"{'mod' * 50} is not a known field"),
        ({"type": "chat.send", "id": "1", "conversation_id": "c1"}, "content is required"),
        ({**SEND, "content": 5}, "content must be a string, got 5"),
        ({**SEND, "mode": "x"}, "mode must be 'queue' or 'steer', got 'x'"),
        ({**SEND, "overrides": "x"}, "overrides must be an object, got 'x'"),
        ({**SEND, "attachments": "x"}, "attachments must be a list, got 'x'"),
        (
            {**SEND, "conversation_id": "a b"},
            "conversation_id: expected 1 to 64 letters, digits, '-' or '_', got 'a b'",
        ),
        ({**SEND, "id": ""}, "id must have at least 1 character, got ''"),
        (
            {**CREATE, "settings": {"max_iteration": 3}},
            "settings.max_iteration is not a known field; did you mean max_iterations?",
        ),
        (
            {**SEND, "overrides": {"options": {"temprature": 1}}},
            "overrides.options.temprature is not a known field; did you mean temperature?",
        ),
        (
            {**SEND, "content": [{"type": "text", "txt": "hi"}]},
            "content.0.txt is not a known field; did you mean text?",
        ),
        ({**SEND, "content": [{"type": "text"}]}, "content.0.text is required"),
        (
            {**SEND, "content": [{"type": "txt"}]},
            "content.0.type must be one of 'text', 'image', 'file', got 'txt'",
        ),
        (
            {**DECIDE, "decisions": [{"tool_call_id": "k1", "decison": "approve"}]},
            "decisions.0.decison is not a known field; did you mean decision?",
        ),
        (
            {**SEND, "variables": {"any": {"name": 1}}, "mode": None},
            "mode must be 'queue' or 'steer', got null",
        ),
        ({}, "type is required"),
        ([], "body must be an object, got []"),
    ],
)
def test_invalid_frame_is_described_by_field_value_and_expectation(frame: Any, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_as(CLIENT_FRAME, frame, request=ClientFrame)

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (ClientFrame, {"type": "hello", "token": 5_550_100}, "token must be a string"),
        (
            NewMcpServer,
            {
                "id": "s",
                "transport": {"type": "http", "url": "https://a.b", "headers": {"X-Key": "5550100\n"}},
            },
            "transport.headers.X-Key must match ",
        ),
        (
            NewMcpServer,
            {"id": "s", "transport": {"type": "stdio", "command": ["a"], "env": ["5550100"]}},
            "transport.env must be an object",
        ),
        (NewMcpServer, [{"transport": {"headers": {"X-Key": "5550100"}}}], "body must be an object"),
        (McpClientBody, {"client_id": "a", "client_secret": "5550100 "}, "client_secret must match "),
        (SecretBody, {"value": 5_550_100}, "value must be a string"),
    ],
)
def test_error_about_a_secret_does_not_show_it(model: Any, body: Any, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        if model is ClientFrame:
            parse_as(CLIENT_FRAME, body, request=ClientFrame)
        else:
            parse(model, body)

    assert str(refused.value).startswith(message)
    assert "5550100" not in str(refused.value)
    assert refused.value.value is None


def test_error_beside_a_secret_shows_its_value() -> None:
    transport = {"type": "http", "url": "no address", "headers": {"X-Key": "5550100"}}

    with pytest.raises(BadInput, match=r"^transport\.url must match .*, got 'no address'$"):
        parse(NewMcpServer, {"id": "s", "transport": transport})


def test_unknown_frame_type_lists_the_known_types() -> None:
    with pytest.raises(BadInput, match=r"^type must be one of 'hello', .*, got 'chat\.sen'$"):
        parse_as(CLIENT_FRAME, {"type": "chat.sen"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"temperature": 3}}, "options.temperature must be at most 2, got 3"),
        ({"tools": {"enabled": "yes"}}, "tools.enabled must be true or false, got 'yes'"),
        ({"tools": {"max_iterations": 1.5}}, "tools.max_iterations must be an integer, got 1.5"),
        ({"limits": {"run_timeout_s": "9"}}, "limits.run_timeout_s must be a number, got '9'"),
        ({"fallback_models": ["m"] * 6}, "fallback_models must have at most 5 items, not 6"),
    ],
)
def test_invalid_setting_is_described_by_field_value_and_expectation(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parse_as(ASSISTANT, {"id": "a1", **fields})

    assert str(refused.value).startswith(message)
