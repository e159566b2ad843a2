"""Options of requests in the form that each vendor's API takes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.deltas import Shown
from tests.support.model_server import ModelServer
from tests.support.scripted_models import HttpError, ScriptedReply

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.base import Provider
from banksman.agent.providers.catalog import Providers
from banksman.contracts.messages import AssistantMessage, ToolMessage, UserMessage
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult

HELLO = UserMessage(message_id="m1", content="hello")
ECHO = ToolDefinition(name="echo", description="Repeats a text.")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def sent(
    server: ModelServer, provider: Provider, options: ModelOptions, **fields: Any
) -> dict[str, Any]:
    """Return the body of the request that an adapter sends for these options."""
    model = server.play("options", [ScriptedReply(text="{}")], by="count")
    request = ModelRequest(model, "Be brief.", fields.pop("messages", (HELLO,)), options=options, **fields)
    await provider.complete(request, deltas=Shown(), deadline_s=30)
    assert server.violations == []
    return server.requests("options")[-1].body


@pytest.fixture
def openai(providers: Providers) -> Provider:
    return providers.choose("openai:any")[0]


@pytest.fixture
def anthropic(providers: Providers) -> Provider:
    return providers.choose("anthropic:any")[0]


async def test_chat_completions_take_the_options_under_their_own_names(
    server: ModelServer, openai: Provider
) -> None:
    options = ModelOptions(reasoning_effort="low", parallel_tool_calls=False)

    body = await sent(server, openai, options, tools=(ECHO,))

    assert (body["reasoning_effort"], body["parallel_tool_calls"]) == ("low", False)


async def test_parallel_calls_are_not_mentioned_without_tools(server: ModelServer, openai: Provider) -> None:
    """Vendors refuse `parallel_tool_calls` in a request without tools."""
    body = await sent(server, openai, ModelOptions(parallel_tool_calls=True))

    assert "parallel_tool_calls" not in body


async def test_response_schema_is_the_format_of_a_request_without_tools(
    server: ModelServer, openai: Provider
) -> None:
    body = await sent(server, openai, ModelOptions(response_schema=SCHEMA))

    form = {"name": "reply", "schema": SCHEMA, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": form}
    assert body["messages"][0]["content"] == "Be brief."


async def test_schema_that_vendors_do_not_enforce_is_not_called_strict(
    server: ModelServer, openai: Provider
) -> None:
    optional = {"type": "object", "properties": {"city": {"type": "string"}}}

    body = await sent(server, openai, ModelOptions(response_schema=optional))

    assert body["response_format"]["json_schema"]["strict"] is False


async def test_response_schema_is_in_the_prompt_beside_tools(server: ModelServer, openai: Provider) -> None:
    """Many servers apply a response format to every reply, and the model could never call a tool."""
    body = await sent(server, openai, ModelOptions(response_schema=SCHEMA), tools=(ECHO,))

    assert "response_format" not in body
    assert '"required": ["city"]' in body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("option", "refusal"),
    [
        ({"reasoning_effort": "high"}, "Unsupported parameter: 'reasoning_effort' for this model."),
        ({"parallel_tool_calls": True}, "parallel_tool_calls is not supported by this server"),
        ({"response_schema": SCHEMA}, "Invalid schema for response_format 'reply'"),
    ],
)
async def test_refused_option_is_omitted_and_the_request_repeated(
    server: ModelServer, openai: Provider, option: dict[str, Any], refusal: str
) -> None:
    fault = HttpError(status=400, message=refusal, times=1)
    model = server.play("refused", [ScriptedReply(text="{}", fault=fault)])
    tools = () if "response_schema" in option else (ECHO,)
    request = ModelRequest(model, "Be brief.", (HELLO,), tools, ModelOptions(temperature=0.5, **option))

    for _ in range(2):
        reply = await openai.complete(request, deltas=Shown(), deadline_s=30)
        assert reply.text == "{}"

    first, *others = [one.body for one in server.requests("refused")]
    names = {"reasoning_effort", "parallel_tool_calls", "response_format"}
    assert len(names & first.keys()) == 1 and len(others) == 2
    assert not any(names & body.keys() for body in others)
    assert all(body["temperature"] == 0.5 for body in others)
    if "response_schema" in option:
        assert all("JSON Schema" in body["messages"][0]["content"] for body in others)


async def test_anthropics_older_models_receive_a_budget_of_thinking(
    server: ModelServer, anthropic: Provider
) -> None:
    options = ModelOptions(reasoning_effort="medium", temperature=0.5)

    body = await sent(server, anthropic, options)

    assert body["thinking"] == {"type": "enabled", "budget_tokens": 8192}
    assert "temperature" not in body, "the API refuses a temperature beside thinking"


async def test_thinking_leaves_half_of_the_tokens_for_the_reply(
    server: ModelServer, anthropic: Provider
) -> None:
    body = await sent(server, anthropic, ModelOptions(reasoning_effort="high", max_tokens=6000))
    assert body["thinking"]["budget_tokens"] == 3000

    body = await sent(server, anthropic, ModelOptions(reasoning_effort="high", max_tokens=500))
    assert "thinking" not in body, "the API refuses a budget below 1,024 tokens"


async def test_no_thinking_is_requested_after_a_reply_that_has_none(
    server: ModelServer, anthropic: Provider
) -> None:
    """The API refuses it: with thinking, each reply since the user's message must begin with thinking."""
    call = ToolCall(id="c1", name="echo")
    other = AssistantMessage(message_id="m2", content=None, calls=(call,), provider="openai")
    result = ToolMessage(name="echo", result=ToolResult(tool_call_id="c1", content={}))

    body = await sent(
        server,
        anthropic,
        ModelOptions(reasoning_effort="low"),
        messages=(HELLO, other, result),
        tools=(ECHO,),
    )
    assert "thinking" not in body

    later = UserMessage(message_id="m3", content="go on")
    body = await sent(
        server,
        anthropic,
        ModelOptions(reasoning_effort="low"),
        messages=(HELLO, other, result, later),
        tools=(ECHO,),
    )
    assert body["thinking"]["type"] == "enabled"


async def test_anthropic_receives_the_other_options_in_its_form(
    server: ModelServer, anthropic: Provider
) -> None:
    body = await sent(server, anthropic, ModelOptions(parallel_tool_calls=False), tools=(ECHO,))
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}

    body = await sent(server, anthropic, ModelOptions(response_schema=SCHEMA))
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}


async def test_anthropic_receives_only_schemas_that_it_accepts(
    server: ModelServer, anthropic: Provider
) -> None:
    """It refuses an object without `additionalProperties: false`."""
    body = await sent(server, anthropic, ModelOptions(response_schema={"type": "object"}))

    assert "output_config" not in body
    assert '{"type": "object"}' in body["system"][0]["text"]


def test_response_schema_must_be_of_an_object() -> None:
    with pytest.raises(ValueError, match='JSON Schema with `"type": "object"`'):
        ModelOptions(response_schema={"type": "array"})
    with pytest.raises(ValueError, match="at most 32768 bytes"):
        ModelOptions(response_schema={"type": "object", "description": "x" * 40_000})


def test_options_that_are_not_set_are_not_stored() -> None:
    """An older process must be able to read what a newer one stored."""
    assert ModelOptions().model_dump() == {"max_tokens": None, "temperature": None}
