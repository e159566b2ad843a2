"""The Responses API of the model server, used by OpenAI's SDK."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIError, AsyncOpenAI, BadRequestError
from tests.support.model_server import ModelServer
from tests.support.scripted_models import EarlyEnd, HttpError, ScriptedCall, ScriptedReply, StreamError

BASH: Any = {
    "type": "function",
    "name": "bash",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
EVERYTHING = ScriptedReply(
    text="one two",
    reasoning="because",
    tool_calls=(ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_1"),),
)


async def final(client: AsyncOpenAI, **fields: Any) -> Any:
    async with client.responses.stream(**fields) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_response()


MCP: Any = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [BASH]}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_is_called_in_its_namespace(openai: AsyncOpenAI, streams: bool) -> None:
    """Agents offer the tools of MCP servers in namespaces."""
    ask: Any = {"role": "user", "content": 'use the tool `mcp__files__bash` with {"command": "ls"}'}
    fields: dict[str, Any] = {"model": "demo", "tools": [MCP]}
    read = final if streams else lambda client, **given: client.responses.create(**given)
    first = await read(openai, input=[ask], **fields)
    [call] = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "notes.txt"}
    history = [ask, *(item.to_dict() for item in first.output), result]
    second = await read(openai, input=history, **fields)
    assert (call.namespace, call.name, call.arguments) == ("mcp__files", "bash", '{"command":"ls"}')
    assert "`mcp__files__bash`" in second.output_text and "notes.txt" in second.output_text


@pytest.mark.parametrize("streams", [False, True])
async def test_text_reasoning_and_calls_are_read_by_the_sdk(
    server: ModelServer, openai: AsyncOpenAI, streams: bool
) -> None:
    fields: dict[str, Any] = {"model": server.play("all", [EVERYTHING]), "input": "hi", "tools": [BASH]}
    read = final if streams else lambda client, **given: client.responses.create(**given)
    response = await read(openai, **fields)
    reasoning, message, call = response.output
    assert (response.status, response.output_text) == ("completed", "one two")
    assert reasoning.summary[0].text == "because"
    assert message.role == "assistant"
    assert (call.call_id, call.name, call.arguments) == ("call_1", "bash", '{"command":"ls"}')
    assert response.usage.total_tokens > 0


async def test_the_demo_model_runs_a_command_and_reports_its_output(
    server: ModelServer, openai: AsyncOpenAI
) -> None:
    history: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "run `ls`"}]}]
    fields: dict[str, Any] = {"model": "demo", "tools": [BASH, {"type": "web_search"}], "store": False}
    first = await final(openai, input=history, **fields)
    [call] = [item for item in first.output if item.type == "function_call"]
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "notes.txt"})
    second = await final(openai, input=history, **fields)
    assert call.name == "bash" and "ls" in call.arguments
    assert "notes.txt" in second.output_text
    assert not server.violations


async def test_a_reply_cut_by_the_token_limit_is_incomplete(server: ModelServer, openai: AsyncOpenAI) -> None:
    model = server.play("length", [ScriptedReply(text="one", finish_reason="length")])
    response = await openai.responses.create(model=model, input="hi")
    assert response.status == "incomplete"
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"


BROKEN: dict[str, Any] = {
    "No tool output found": [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
    ],
    "No tool call found": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
    "Missing required parameter: 'input'": [],
    "Invalid value: 'robot'": [{"role": "robot", "content": "hi"}],
}


@pytest.mark.parametrize("message", BROKEN)
async def test_a_broken_history_is_refused(openai: AsyncOpenAI, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        await openai.responses.create(model="demo", input=BROKEN[message])


@pytest.mark.parametrize("fault", [HttpError(status=500), StreamError(after_events=4), EarlyEnd()])
async def test_faults_reach_the_sdk(server: ModelServer, openai: AsyncOpenAI, fault: Any) -> None:
    model = server.play("fault", [ScriptedReply(text="one two", fault=fault)])
    with pytest.raises((APIError, RuntimeError)):
        await final(openai, model=model, input="hi")
