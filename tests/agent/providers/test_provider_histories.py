"""Any sequence of messages, calls and results maps to requests that both vendors accept (P11, A22, A23)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strict_requests.anthropic import check_message
from tests.support.strict_requests.openai import check_chat_completion

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers import anthropic_request, openai_request
from banksman.agent.providers.profiles import profile_of
from banksman.contracts.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult
from banksman.model_server.anthropic_reply import signature_of

BASH = ToolDefinition(name="bash", description="Runs a command.")
OPENAI = profile_of("https://api.openai.com/v1", "m")
ANTHROPIC = profile_of("https://api.anthropic.com", "m")
THINKING = {"thinking": [{"type": "thinking", "thinking": "hm", "signature": signature_of("hm")}]}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["", " \n", "{}"])
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(FilePart, path=texts),
    st.builds(
        ImagePart, url=st.sampled_from(["data:image/png;base64,aGk=", "data:image/tiff;base64,aGk=", "a.png"])
    ),
)
contents = texts | st.lists(parts, max_size=3).map(tuple)
call_ids = st.sampled_from([f"c{number}" for number in range(6)])
calls = st.builds(
    ToolCall,
    id=call_ids,
    name=st.sampled_from(["bash", "read_file", "", "no such tool!", "é" * 80]),
    arguments=st.dictionaries(texts, texts, max_size=2),
    provider_call_id=st.sampled_from([None, "", "call_1", "call_2", "not valid", "x" * 65]),
)
results = st.builds(
    ToolMessage,
    name=st.sampled_from(["bash", "read_file"]),
    result=st.builds(
        ToolResult,
        tool_call_id=call_ids,
        content=st.fixed_dictionaries({"success": st.booleans()}, optional={"content": texts}),
        is_error=st.booleans(),
    ),
)
replies = st.builds(
    AssistantMessage,
    message_id=st.just("m"),
    content=st.none() | texts,
    calls=st.lists(calls, max_size=3).map(tuple),
    protocol=st.sampled_from(["native", "json_text"]),
    provider=st.sampled_from(["", "anthropic", "openai"]),
    provider_state=st.none() | st.just(THINKING),
)
user_messages = st.builds(UserMessage, message_id=st.just("m"), content=contents)
histories = st.lists(user_messages | replies | results | results, max_size=12).map(tuple)


@pytest.mark.parametrize("protocol", ["native", "json_text"])
@given(histories, st.booleans())
def test_every_history_is_valid_for_both_vendors(
    protocol: ToolProtocol, history: tuple[Message, ...], with_tools: bool
) -> None:
    tools = (BASH,) if with_tools else ()
    request = protocol_for(protocol).prepare(ModelRequest("m", "Be brief.", history, tools))

    check_message(body_of(anthropic_request.body(request, "anthropic", ANTHROPIC)))
    if history:
        check_chat_completion(body_of(openai_request.body(request, "openai", OPENAI)))


@given(histories)
def test_every_call_has_one_result_directly_after_it(history: tuple[Message, ...]) -> None:
    sent: list[Any] = openai_request.messages(ModelRequest("m", "", history, (BASH,)), "openai", OPENAI)

    open_calls: list[str] = []
    for message in sent:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
        else:
            assert open_calls == []
        open_calls += [call["id"] for call in message.get("tool_calls", [])]
    assert open_calls == []


@given(histories)
def test_every_tool_use_has_one_result_in_the_next_message(history: tuple[Message, ...]) -> None:
    """A22: in Anthropic's format, which has all results of a reply in one message."""
    request = ModelRequest("m", "", history, (BASH,))
    sent: list[Any] = body_of(anthropic_request.body(request, "anthropic", ANTHROPIC))["messages"]

    open_calls: list[str] = []
    for message in sent:
        blocks = message["content"] if isinstance(message["content"], list) else []
        returned = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert returned == open_calls
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(set(open_calls)) == len(open_calls)
    assert open_calls == []


def body_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the body that the SDK sends."""
    return json.loads(json.dumps(arguments))
