from __future__ import annotations

from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedCall, ScriptedReply

from banksman.model_server.anthropic_reply import signature_of


def user(content: Any = "hello") -> Any:
    return {"role": "user", "content": content}


def openai_calls(*ids: str) -> Any:
    calls = [{"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def openai_result(call_id: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": '{"success": true}'}


def openai_tool(name: str = "bash", parameters: Any = None) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def anthropic_calls(*ids: str) -> Any:
    blocks = [{"type": "tool_use", "id": id, "name": "bash", "input": {}} for id in ids]
    return {"role": "assistant", "content": blocks}


def result_block(call_id: str) -> Any:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "done"}


def text_block(text: str) -> Any:
    return {"type": "text", "text": text}


@pytest.fixture
def model(server: ModelServer) -> str:
    return server.play("any", [ScriptedReply(text="fine")], at_end="repeat")


OPENAI_FAULTS: list[Any] = [
    pytest.param([], "empty array", id="no messages"),
    pytest.param(
        [user(), openai_calls("a"), user()], "did not have response messages: a", id="missing result"
    ),
    pytest.param(
        [user(), openai_calls("a", "b"), openai_result("b")], "messages: a", id="one of two missing"
    ),
    pytest.param([user(), openai_result("a")], "must be a response to a preceding", id="orphan result"),
    pytest.param(
        [user(), openai_calls("a"), openai_result("a"), user(), openai_result("a")],
        "must be a response to a preceding",
        id="result not directly following",
    ),
    pytest.param(
        [user(), openai_calls("a"), openai_result("a"), openai_result("a")],
        "already has a result",
        id="doubled result",
    ),
    pytest.param(
        [user(), openai_calls("a"), openai_result("z")],
        "is not in the preceding",
        id="result of another call",
    ),
    pytest.param(
        [user(), openai_calls("a", "a"), openai_result("a")], "Duplicate value", id="doubled call id"
    ),
    pytest.param([user(), {"role": "critic", "content": "no"}], "Invalid value: 'critic'", id="unknown role"),
    pytest.param([user(None)], "expected a string, got null", id="user without content"),
    pytest.param([user(), {"role": "assistant", "content": None}], "got null", id="reply without anything"),
    pytest.param([user(), {"role": "assistant", "tool_calls": []}], "empty array", id="empty calls"),
    pytest.param([user([])], "empty array", id="no content parts"),
    pytest.param([user([{"type": "video", "url": "x"}])], "Invalid value: 'video'", id="unknown part"),
    pytest.param(["hello"], "expected an object", id="message no object"),
]


@pytest.mark.parametrize(("messages", "reason"), OPENAI_FAULTS)
async def test_openai_refuses_a_broken_history(
    server: ModelServer, openai: AsyncOpenAI, model: str, messages: Any, reason: str
):
    with pytest.raises(openai_sdk.BadRequestError) as caught:
        await openai.chat.completions.create(model=model, messages=messages)
    assert reason in caught.value.message
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param is not None
    (violation,) = server.violations
    assert (violation.dialect, violation.model) == ("openai", model)
    assert reason in violation.message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tools": []}, "Invalid 'tools'"),
        ({"tools": [openai_tool("no spaces")]}, "does not match pattern"),
        ({"tools": [openai_tool(parameters={"type": "string"})]}, "schema must be a JSON Schema of 'type"),
        ({"tools": [openai_tool(parameters={"type": "object", "required": "x"})]}, "draft 2020-12"),
        ({"tools": [{"type": "function"}]}, "Invalid 'tools[0]'"),
        ({"tool_choice": "auto"}, "'tools' are specified"),
        ({"max_tokens": 0}, "at least 1"),
        ({"extra_body": {"stream_options": {"include_usage": True}}}, "'stream' is enabled"),
        ({"n": 2}, "one choice"),
    ],
)
async def test_openai_refuses_invalid_options(
    openai: AsyncOpenAI, model: str, options: dict[str, Any], reason: str
):
    with pytest.raises(openai_sdk.BadRequestError) as caught:
        await openai.chat.completions.create(model=model, messages=[user()], **options)
    assert reason in caught.value.message


async def test_openai_accepts_histories_that_its_vendor_accepts(
    server: ModelServer, openai: AsyncOpenAI, model: str
):
    messages = [
        {"role": "developer", "content": "Be brief."},
        user([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]),
        openai_calls("a", "b"),
        openai_result("b"),
        openai_result("a") | {"content": [{"type": "text", "text": "{}"}]},
        {"role": "assistant", "content": "done"},
        user(""),
    ]
    completion = await openai.chat.completions.create(model=model, messages=messages, tools=[openai_tool()])
    assert completion.choices[0].message.content == "fine"
    assert server.violations == []


ANTHROPIC_FAULTS: list[Any] = [
    pytest.param([], "at least one message", id="no messages"),
    pytest.param(
        [anthropic_calls("a"), user([result_block("a")])], "first message must use", id="first role"
    ),
    pytest.param([user(), anthropic_calls("a"), user()], "without `tool_result` blocks", id="missing result"),
    pytest.param(
        [user(), anthropic_calls("a", "b"), user([result_block("b")])],
        "immediately after: a",
        id="one of two missing",
    ),
    pytest.param([user([result_block("a")])], "unexpected `tool_use_id`", id="orphan result"),
    pytest.param(
        [user(), anthropic_calls("a"), user([text_block("first this"), result_block("a")])],
        "without `tool_result` blocks immediately after",
        id="text before the result",
    ),
    pytest.param(
        [user(), anthropic_calls("a"), user([result_block("a"), result_block("a")])],
        "Found multiple `tool_result` blocks with id: a",
        id="doubled result",
    ),
    pytest.param(
        [
            user(),
            anthropic_calls("a"),
            user([result_block("a")]),
            anthropic_calls("a"),
            user([result_block("a")]),
        ],
        "ids must be unique",
        id="doubled call id",
    ),
    pytest.param([user(), {"role": "tool", "content": "x"}], "'user' or 'assistant'", id="unknown role"),
    pytest.param([{"role": "system", "content": "x"}], "top-level `system`", id="system as a role"),
    pytest.param([user("")], "non-empty content", id="empty string"),
    pytest.param([user([])], "non-empty content", id="no blocks"),
    pytest.param([user([text_block("")])], "must be non-empty", id="empty text block"),
    pytest.param([user(" \n")], "non-whitespace", id="blank text"),
    pytest.param([user(), {"role": "assistant", "content": "I"}], "prefill", id="last role"),
    pytest.param([user([{"type": "video"}])], "Input tag 'video'", id="unknown block"),
    pytest.param(
        [
            user(),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "{}"}]},
        ],
        "valid dictionary",
        id="input as text",
    ),
    pytest.param([{"role": "user"}], "content: Field required", id="no content"),
]


@pytest.mark.parametrize(("messages", "reason"), ANTHROPIC_FAULTS)
async def test_anthropic_refuses_a_broken_history(
    server: ModelServer, anthropic: AsyncAnthropic, model: str, messages: Any, reason: str
):
    with pytest.raises(anthropic_sdk.BadRequestError) as caught:
        await anthropic.messages.create(model=model, messages=messages, max_tokens=9)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert reason in body["error"]["message"]
    (violation,) = server.violations
    assert (violation.dialect, violation.model) == ("anthropic", model)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "Input should be 'object'"),
        ({"tools": [{"name": "a", "input_schema": {"type": "object", "required": 1}}]}, "schema is invalid"),
        ({"tools": [{"name": "a"}]}, "input_schema: Field required"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "should match pattern"),
        ({"tools": [{"name": "a", "input_schema": {"type": "object"}}] * 2}, "must be unique"),
        ({"tool_choice": {"type": "auto"}}, "tools must be provided"),
        ({"extra_body": {"temperature": 1.5}}, "range: 0..1"),
        ({"max_tokens": 0}, "greater than or equal to 1"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"system": [text_block("")]}, "must be non-empty"),
    ],
)
async def test_anthropic_refuses_invalid_options(
    anthropic: AsyncAnthropic, model: str, options: dict[str, Any], reason: str
):
    with pytest.raises(anthropic_sdk.BadRequestError) as caught:
        await anthropic.messages.create(**({"model": model, "messages": [user()], "max_tokens": 9} | options))
    assert reason in str(caught.value)


async def test_anthropic_accepts_histories_that_its_vendor_accepts(
    server: ModelServer, anthropic: AsyncAnthropic, model: str
):
    thinking = {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")}
    calls = anthropic_calls("a", "b")
    messages = [
        user(),
        calls | {"content": [thinking, text_block("I look."), *calls["content"]]},
        user([result_block("b")]),
        user(
            [result_block("a") | {"content": [text_block("out")], "is_error": True}, text_block("and now?")]
        ),
    ]
    message = await anthropic.messages.create(
        model=model, messages=messages, max_tokens=9, system="Be brief.", metadata={"user_id": "u"}
    )
    assert message.stop_reason == "end_turn"
    assert server.violations == []


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ([{"type": "thinking", "thinking": "hm!", "signature": signature_of("hm")}], "Invalid `signature`"),
        (
            [{"type": "thinking", "thinking": "other", "signature": signature_of("other")}],
            "must contain its original",
        ),
        ([], "must contain its original thinking block"),
    ],
)
async def test_anthropic_requires_the_thinking_of_a_call_unchanged(
    server: ModelServer, anthropic: AsyncAnthropic, returned: list[Any], reason: str
):
    call = ScriptedCall(name="a", id="toolu_1")
    model = server.play(
        "thinker", [ScriptedReply(reasoning="hm", tool_calls=(call,)), ScriptedReply(text="ok")]
    )
    first = await anthropic.messages.create(model=model, messages=[user()], max_tokens=9)
    calls = [block.model_dump() for block in first.content if block.type == "tool_use"]
    messages = [
        user(),
        {"role": "assistant", "content": [*returned, *calls]},
        user([result_block("toolu_1")]),
    ]

    with pytest.raises(anthropic_sdk.BadRequestError) as caught:
        await anthropic.messages.create(model=model, messages=messages, max_tokens=9)

    assert reason in str(caught.value)
    messages[1]["content"] = [block.model_dump() for block in first.content]
    accepted = await anthropic.messages.create(model=model, messages=messages, max_tokens=9)
    assert accepted.stop_reason == "end_turn"
