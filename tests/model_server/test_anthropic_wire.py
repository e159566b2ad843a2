from __future__ import annotations

from typing import Any

import anthropic as sdk
import httpx
import pytest
from anthropic import AsyncAnthropic
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "name": "bash",
        "description": "Run a command.",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
]


async def test_text_reply_is_returned_unchanged(server: ModelServer, anthropic: AsyncAnthropic):
    model = server.play("greeting", [ScriptedReply(text="Good morning, world.")])
    message = await anthropic.messages.create(model=model, messages=HELLO, max_tokens=100)
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "Good morning, world."}
    ]
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 5)
    assert message._request_id is not None


async def test_sdk_assembles_a_stream_of_reasoning_text_and_parallel_calls(
    server: ModelServer, anthropic: AsyncAnthropic
):
    calls = (
        ScriptedCall(name="bash", arguments={"command": "echo a long enough command", "timeout_s": 3}),
        ScriptedCall(name="bash", id="toolu_mine"),
    )
    model = server.play(
        "all", [ScriptedReply(reasoning="Let me see.", text="I will look.", tool_calls=calls)]
    )
    async with anthropic.messages.stream(model=model, messages=HELLO, max_tokens=100, tools=TOOLS) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    thinking, text, first, second = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "Let me see."
    assert text.type == "text"
    assert text.text == "I will look."
    assert first.type == "tool_use"
    assert second.type == "tool_use"
    assert first.input == {"command": "echo a long enough command", "timeout_s": 3}
    assert (second.id, second.input) == ("toolu_mine", {})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens > 1


async def test_the_sdk_continues_its_tool_loop_without_a_thread(
    server: ModelServer, anthropic: AsyncAnthropic
):
    """Each of its requests has the new messages only, unless the server refuses threads."""

    @sdk.beta_async_tool
    async def weather(city: str) -> str:
        """Return the weather."""
        return f"Rain in {city}."

    call = ScriptedCall(name="weather", arguments={"city": "Paris"})
    model = server.play("loop", [ScriptedReply(tool_calls=(call,)), ScriptedReply(text="It rains.")])
    loop = anthropic.beta.messages.tool_runner(
        model=model, max_tokens=100, messages=HELLO, tools=[weather], stream=True
    )
    replies = [await (await anext(loop)).get_final_message() for _ in range(2)]
    assert [reply.stop_reason for reply in replies] == ["tool_use", "end_turn"]
    assert [len(request.body["messages"]) for request in server.requests("loop")] == [1, 1, 3]


async def test_scripted_usage_and_finish_reason_are_returned(server: ModelServer, anthropic: AsyncAnthropic):
    usage = ScriptedUsage(input_tokens=9, output_tokens=0, cached_tokens=4)
    model = server.play(
        "odd", [ScriptedReply(text="a", usage=usage, finish_reason="astonished")], at_end="repeat"
    )
    message = await anthropic.messages.create(model=model, messages=HELLO, max_tokens=100)
    assert message.stop_reason == "astonished"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (9, 0)
    assert message.usage.cache_read_input_tokens == 4
    model = server.play("cut", [ScriptedReply(text="a", finish_reason="length")])
    message = await anthropic.messages.create(model=model, messages=HELLO, max_tokens=100)
    assert message.stop_reason == "max_tokens"


async def test_counted_tokens_equal_reported_tokens(server: ModelServer, anthropic: AsyncAnthropic):
    model = server.play("count", [ScriptedReply(text="a")])
    request: Any = {"model": model, "messages": HELLO, "system": "x" * 400, "tools": TOOLS}
    count = await anthropic.messages.count_tokens(**request)
    message = await anthropic.messages.create(**request, max_tokens=100)
    assert count.input_tokens == message.usage.input_tokens
    assert count.input_tokens > 100


async def test_models_are_listed_and_retrieved(server: ModelServer, anthropic: AsyncAnthropic):
    model = server.play("listed", [ScriptedReply(text="a")])
    assert [entry.id async for entry in anthropic.models.list()] == ["demo", model]
    assert (await anthropic.models.retrieve(model)).type == "model"


async def test_an_unknown_model_is_a_404(server: ModelServer, anthropic: AsyncAnthropic):
    with pytest.raises(sdk.NotFoundError) as caught:
        await anthropic.messages.create(model="claude-nothing", messages=HELLO, max_tokens=100)
    assert "claude-nothing" in str(caught.value)
    assert server.violations == []


async def test_request_without_api_version_is_refused(server: ModelServer):
    async with httpx.AsyncClient() as client:
        response = await client.post(
            f"{server.url}/v1/messages", json={"model": "demo", "messages": HELLO, "max_tokens": 1}
        )
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert "anthropic-version" in response.json()["error"]["message"]
